"""What protection costs: a fresh-key POST under gunicorn, beside a hand-written floor. Not collected as tests.

``python -m tests.bench`` runs it (``tox -e bench``). ``views`` holds what is compared, ``floor`` and ``floor.sql`` the
least that one could write by hand for the same promise, ``load`` sends, ``report`` tells.
"""
