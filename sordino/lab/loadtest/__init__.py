"""Load test: a real coordinator process and many real participants, with dropouts that are planned and sums that are
checked.

``options`` says what is asked for, ``schedule`` who leaves when and what everybody sends, ``client_process`` hosts
participants, ``run`` starts it all and follows, ``summary`` makes figures of what happened.
"""
