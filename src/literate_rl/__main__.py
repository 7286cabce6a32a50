"""Train agents and watch them: ``literate-rl ppo --env CartPole-v1``."""

import os
import signal
import sys


def end(*_: object) -> None:
    """End the process: an exception might be caught in somebody else's import."""
    os.write(2, b"\ninterrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line, as ``literate-rl`` or as ``python -m literate_rl``."""
    # Until the training listens to Ctrl-C. Files are written whole or not at all.
    signal.signal(signal.SIGINT, end)
    # With -m Python finds the modules of the working directory; a script has to say so.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())

    from literate_rl.apps.commands import main as command

    command()


if __name__ == "__main__":
    main()
