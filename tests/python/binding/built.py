# SPDX-License-Identifier: Apache-2.0
"""Where the package that is tested lies: beside the command that bin/shoal points to."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
COMMAND = ROOT / "bin" / "shoal"
BUILD = COMMAND.resolve().parent if COMMAND.exists() else ROOT / "build" / os.environ.get("PRESET", "dev")
