"""`python -m phase02_iteration_scheduling generate "Why is the sky blue?" "Two plus two is"`"""

from shared import cli

if __name__ == "__main__":
    cli.main(phase=2)
