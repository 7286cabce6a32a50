"""Train agents and watch them: ``python -m literate_rl ppo --env CartPole-v1``."""

from literate_rl.workshop.cli import main

if __name__ == "__main__":
    main()
