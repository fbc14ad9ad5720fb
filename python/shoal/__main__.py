# SPDX-License-Identifier: Apache-2.0
"""python -m shoal is the command."""

from shoal._command import main

main()
