"""The study's authority: decides who may take part, and holds the keys that prove it. It isn't part of the coordinator.

``folder`` has its files, ``store`` its decisions; ``requests`` judges requests, ``roster`` signs the next version,
``link`` calls the coordinator, which may lie, ``visit`` combines these, and ``local_enrolment`` gives codes to
participants on the same machine.
"""
