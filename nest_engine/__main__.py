"""`python -m nest_engine`: the command line."""

import sys

from nest_engine.cli import main

sys.exit(main())
