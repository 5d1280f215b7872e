#!/usr/bin/env python3
# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `make` runs once the venv is there: steps with a table at the end, and the demo."""

from __future__ import annotations

import argparse
import sys
import typing as t
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gates import steps
from gates.demo import demo
from gates.report import Report, Step


def everything(report: Report, sample: bool) -> None:
    """The unit tests take all of the machine; the scenarios leave room for what runs on one core."""
    report.run([*steps.units(sample), *steps.artefact()])
    behind = [*steps.lint(sample), *steps.engine_wheels(), *steps.sanity()]
    report.run(steps.molecule(steps.scenarios(sample), sample=sample), behind)
    report.run([] if sample else steps.bench())


def molecule(options: argparse.Namespace) -> list[Step]:
    return steps.molecule(options.scenario or steps.scenarios(), keep=options.keep)


TARGETS: dict[str, t.Callable[[argparse.Namespace], list[Step]]] = {
    "lint": lambda options: steps.lint(),
    "sanity": lambda options: steps.sanity(),
    "units": lambda options: steps.units(),
    "build": lambda options: steps.artefact(),
    "molecule": molecule,
    "bench": lambda options: steps.bench(),
}
WHOLE = {"test": True, "test-all": False}
"""Targets that run everything, and whether they take a sample of what is long."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("target", choices=[*TARGETS, *WHOLE, "demo"])
    top.add_argument("--scenario", action="append", help="molecule: only this scenario (may be repeated)")
    top.add_argument("--keep", action="store_true", help="molecule: leave the containers up")
    top.add_argument("--engine", choices=["fake", "real"], default="fake", help="demo: which engine serves")
    return top


def main() -> int:
    options = parser().parse_args()
    if options.target == "demo":
        return demo(options.engine)
    report = Report()
    if options.target in WHOLE:
        everything(report, WHOLE[options.target])
    else:
        report.run(TARGETS[options.target](options))
    report.print()
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
