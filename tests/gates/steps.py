# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of `make test`: what each runs, by name."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

from gates.artefact import artefact_commands
from gates.report import ROOT, Skip, Step
from gates.sanity import sanity_commands, sanity_environment
from gates.venv import find_python

__all__ = ["OTHER_PYTHONS", "artefact", "bench", "engine_wheels", "lint", "molecule", "sanity", "scenarios", "units"]

BIN = Path(sys.executable).parent
BENCH = str(ROOT / "tests" / "bench" / "bench.py")
# Besides the Python of .venv: each with the newest ansible-core that runs on it (.config/requirements.txt).
OTHER_PYTHONS = ("3.12", "3.13")
# The fleets of the scenarios, see tests/bench/fleets.
FLEETS = ("molecule", "rollout")
# Exit status of bench.py: this machine cannot have what was asked for.
NOT_OFFERED = 3
# Scenarios of `make test-all` alone.
LEFT_TO_TEST_ALL = ("balancer", "crash_loop", "gpu_contention", "kill_anywhere", "model_swap", "orphaned_worker", "weights")
# Many of them wait for processes, so there is one more at a time than there are cores.
UNIT_TESTS = ("python", "-m", "pytest", f"--numprocesses={(os.cpu_count() or 1) + 1}", "--dist=worksteal", "tests/unit", "tests/casebook")
TYPED = ("plugins", "tests", "molecule")
ON_PATH = {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
MOLECULE = {**ON_PATH, "MOLECULE_GLOB": "molecule/*/molecule.yml", "ANSIBLE_FORCE_COLOR": "0", "NO_COLOR": "1", "PY_COLORS": "0"}

# `dependency` does nothing here: there are no requirements.
OF_A_SAMPLE = {"GPUFLEET_SAMPLE": "1", "GPUFLEET_ONCE_MORE": "dependency", "GPUFLEET_LOOK_AGAIN": "dependency"}


def tool(name: str, *arguments: str) -> list[str]:
    return [str(BIN / name), *arguments]


def fixed(*commands: list[str]) -> t.Callable[[], t.Iterable[list[str]]]:
    return lambda: commands


def other_venv(version: str) -> Path:
    return ROOT / f".venv-{version}"


def with_other_python(version: str, *arguments: str) -> t.Callable[[], t.Iterator[list[str]]]:
    """Command lines that make the venv of another Python and run a tool of it; skipped where that Python is not."""

    def commands() -> t.Iterator[list[str]]:
        python = find_python(version)
        if not python:
            raise Skip(f"no Python {version} on this machine")
        yield [sys.executable, str(ROOT / "tests" / "gates" / "venv.py"), str(other_venv(version)), python]
        yield [str(other_venv(version) / "bin" / arguments[0]), *arguments[1:]]

    return commands


def with_oldest_python() -> t.Iterator[list[str]]:
    """Hosts may have a Python that the tools no longer run on: the tests run on ours and start the modules with that one."""
    python = find_python("3.9")
    if not python:
        raise Skip("no Python 3.9 on this machine")
    folder = other_venv("3.9")
    yield [sys.executable, str(ROOT / "tests" / "gates" / "venv.py"), str(folder), python, str(ROOT / ".config" / "oldest-host.txt")]
    yield tool("python", "-m", "pytest", f"--oldest-python={folder / 'bin' / 'python'}", "tests/unit/plugins/test_oldest_python.py")


def lint(sample: bool = False) -> list[Step]:
    """Style and types, Ansible's production profile on each ansible-core (a sample: ours alone), documentation, changelog."""
    others = [
        Step(
            f"lint: ansible-lint, {version}",
            f"production profile of what is shipped, with the ansible-core of Python {version}",
            with_other_python(version, "ansible-lint", "--exclude=molecule/"),  # scenarios run on one core only
            {"PATH": f"{other_venv(version) / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"},
        )
        for version in (() if sample else OTHER_PYTHONS)
    ]
    return [
        Step("lint: ruff", "style and format of Python", fixed(tool("ruff", "check"), tool("ruff", "format", "--check"))),
        Step("lint: mypy", "types, strictly", fixed(tool("mypy", *(name for name in TYPED if (ROOT / name).is_dir())))),
        Step("lint: ansible-lint", "production profile, YAML included", fixed(tool("ansible-lint")), ON_PATH),
        *others,
        Step(
            "lint: docs",
            "documentation of modules, plugins and roles",
            fixed(tool("antsibull-docs", "lint-collection-docs", "--plugin-docs", ".")),
            ON_PATH,
        ),
        Step("lint: changelog", "changelog fragments", fixed(tool("antsibull-changelog", "lint"))),
    ]


def sanity() -> list[Step]:
    return [Step("sanity", "ansible-test sanity over what is shipped", sanity_commands, sanity_environment())]


def units(sample: bool = False) -> list[Step]:
    """The whole suite on the Python of .venv. A sample takes of the others the newest only, and there what an ansible-core may fail."""
    fewer = ("--of-another-core",) if sample else ()
    others = [
        Step(
            f"units, Python {version}",
            "unit tests with the newer ansible-core",
            with_other_python(version, *UNIT_TESTS, *fewer),
        )
        for version in (OTHER_PYTHONS[-1:] if sample else OTHER_PYTHONS)
    ]
    oldest = Step("units, Python 3.9", "modules on the oldest Python of a host, with the Hub client it can have", with_oldest_python)
    return [Step("units", "unit tests", fixed(tool(*UNIT_TESTS))), *others, oldest]


def artefact() -> list[Step]:
    return [Step("build", "the artefact builds, installs and runs from elsewhere", artefact_commands, {"PATH": ON_PATH["PATH"]})]


def scenarios(sample: bool = False) -> list[str]:
    """Every molecule scenario, the owner of the containers first. A sample leaves out stories that others tell in part."""
    names = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))
    left_out = LEFT_TO_TEST_ALL if sample else ()
    return sorted((name for name in names if name not in left_out), key=lambda name: (name != "default", name))


def molecule(names: t.Sequence[str], keep: bool = False, sample: bool = False) -> list[Step]:
    """One step a scenario, and the end of the containers unless they are to be kept.

    A sample leaves out tests marked long, and runs over what stands already where a test does the same.
    """
    environment = {**MOLECULE, **(OF_A_SAMPLE if sample else {"GPUFLEET_SAMPLE": ""})}
    steps = [Step(f"molecule: {name}", "the whole sequence", scenario_commands(name), environment) for name in names]
    down = [tool("python", BENCH, "down", fleet) for fleet in FLEETS]
    last = Step("molecule: remove containers", "the end of the fleets", fixed(*down), ON_PATH)
    return steps if keep else [*steps, last]


def scenario_commands(name: str) -> t.Callable[[], t.Iterable[list[str]]]:
    def commands() -> t.Iterator[list[str]]:
        if name == "real_engine":
            yield from fill_engine_wheels()
        yield tool("molecule", "reset", "--scenario-name", name)
        yield tool("molecule", "test", "--scenario-name", name, "--destroy=never", "--no-command-borders")

    return commands


def engine_wheels() -> list[Step]:
    """Ahead of the scenario that needs them, since they are mostly waited for."""
    return [Step("real engine: wheels", "what the scenario real_engine installs", fill_engine_wheels)]


def fill_engine_wheels() -> t.Iterator[list[str]]:
    """Fetch the real engine, or skip with the reason where it is not offered. Another failure is the step's: a second try shows it."""
    fill = tool("python", BENCH, "wheels", "--engine=real")
    done = subprocess.run(fill, cwd=ROOT, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode == NOT_OFFERED:
        raise Skip(done.stderr.strip().removeprefix("[bench] ERROR: "))
    if done.returncode:
        yield fill


def bench() -> list[Step]:
    found = sorted((ROOT / "tests" / "perf").glob("bench_*.py"))
    return [Step(f"bench: {path.stem[6:]}", "ratios measured in one run", fixed(tool("python", str(path))), ON_PATH) for path in found]
