"""`python -m phase02_iteration_scheduling generate "The capital of France is" "Two plus two is"`"""

from phase02_iteration_scheduling.engine import build_engine
from shared import cli

if __name__ == "__main__":
    cli.main(build_engine, phase=2)
