"""``python -m powerband``."""

import sys

from powerband.cli import main

sys.exit(main())
