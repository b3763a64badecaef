"""How the demo and the tests run gunicorn: see serving.py, which starts it."""

from __future__ import annotations

import os
import signal
import threading

worker_class = "gthread"
workers = 2
threads = 8
# Workers are forked off a master that has loaded everything: the successor of a killed one is there at once.
preload_app = True
# Longer than any request of the example takes, shorter than a person's patience with Ctrl-C.
graceful_timeout = 5
# Newer gunicorns open a socket for their own command line tool, in the user's home.
control_socket_disable = True


def on_starting(server: object) -> None:
    """End together with whoever started this server: its end of the pipe on stdin closes, however it died."""
    threading.Thread(target=_end_with_owner, daemon=True).start()


def when_ready(server: object) -> None:
    """What Django loads with the first request, each new worker would have to load again."""
    from django.urls import get_resolver

    assert get_resolver().url_patterns


def _end_with_owner() -> None:
    # Not sys.stdin: a fork taken during a buffered read would inherit its lock, and could not exit.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
