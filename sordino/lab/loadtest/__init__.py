"""Load test: a real coordinator process and many real participants, planned dropouts, checked sums.

``options`` is the model of a load test, ``faults`` its faults and the participants they hit, ``study`` makes the study,
``client_process`` hosts participants (``thin``: those without work of their own), ``run`` starts everything and follows
it, ``summary`` computes the figures.
"""
