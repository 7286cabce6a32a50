"""Train agents and watch them: ``python -m literate_rl ppo --env CartPole-v1``."""

import os
import signal


def end(*_: object) -> None:
    """End the process: an exception might be caught in somebody else's import."""
    os.write(2, b"\ninterrupted\n")
    os._exit(130)


if __name__ == "__main__":
    # Until the training listens to Ctrl-C. Files are written whole or not at all.
    signal.signal(signal.SIGINT, end)

    from literate_rl.workshop.cli import main

    main()
