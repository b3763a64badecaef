"""The card processor as a program: prints its URL and serves until it is stopped."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from .desk import Desk
from .server import Server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m example_project.processor", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; 0, the default, takes a free one")
    parser.add_argument("--database", type=Path, required=True, help="an SQLite file, made where it is missing")
    parser.add_argument("--key-retention", type=float, default=86400, metavar="SECONDS", help="default: a day")
    parser.add_argument("--owned", action="store_true", help="end with stdin; the owner has reserved the port")
    options = parser.parse_args()

    desk = Desk(options.database, key_retention=timedelta(seconds=options.key_retention))
    with Server(options.port, desk, shared_port=options.owned) as server, suppress(KeyboardInterrupt):
        if options.owned:
            threading.Thread(target=_end_with_owner, daemon=True).start()
        print(server.url, flush=True)
        server.serve_forever()
    return 0


def _end_with_owner() -> None:
    """However the owner died: its end of the pipe on stdin closes. Nothing is lost, each answer was committed."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
