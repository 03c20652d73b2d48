"""`python -m shared.explain --phase 2 --tiny llama --plant position-off-by-one`"""

import sys

from shared.explain.command import main

sys.exit(main())
