"""Django's commands for the example: ``python -m example_project.manage`` or by this file's path."""

import os
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    if not __package__:
        # Run by its path, Python looks for modules beside this file; the package is one folder up.
        sys.path[0] = str(Path(__file__).resolve().parent.parent)
    main()
