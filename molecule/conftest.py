# Copyright (c) 2026 The gpufleet.vllm contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For every scenario's testinfra tests.

A failed test shows what the hosts' model servers wrote to the journal. The fixture `operator` runs playbooks as an operator does;
`unit` is the deployment's unit on one host, `units` has them all.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import testinfra
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "molecule" / "support"))

from on_hosts import Unit  # noqa: E402

JOURNAL = "journalctl --no-pager --output=short-precise --lines=60 --unit='vllm-*.service'"
UNITS = "systemctl --no-pager --no-legend --plain --all list-units 'vllm-*.service'"
Variables = t.Mapping[str, t.Any]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left out of `make test`, which takes a sample; `make test-all` runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A sample is what CI and people run often, so it leaves out what other steps of a scenario show in part."""
    if os.environ.get("GPUFLEET_SAMPLE"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="a sample: `make test-all` runs it"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> t.Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fixtures = getattr(item, "funcargs", {})
    hosts = fixtures["operator"].hosts if "operator" in fixtures else {"": fixtures["host"]} if "host" in fixtures else {}
    if report.when == "call" and report.failed:
        for host in hosts.values():
            for title, command in (("units", UNITS), ("journal", JOURNAL)):
                report.sections.append((f"{title} of {host.backend.get_pytest_id()}", said_by(host, command)))
    return report


def said_by(host: t.Any, command: str) -> str:
    """What it prints, or why the host cannot be asked: testinfra raises where ssh itself fails."""
    try:
        return str(host.run(command).stdout)
    except RuntimeError as exc:
        return str(exc)


class Play(t.NamedTuple):
    """What a run of ansible-playbook ended with."""

    status: int
    output: str

    @property
    def changed(self) -> dict[str, int]:
        """How much the recap says has changed on each host."""
        recap = self.output.rpartition("PLAY RECAP")[2]
        return {host: int(count) for host, count in re.findall(r"^(\S+)\s*: ok=\d+\s+changed=(\d+)", recap, re.MULTILINE)}

    @property
    def failures(self) -> dict[str, str]:
        """What each host that failed said."""
        blocks = re.findall(r"^fatal: \[([^\]]+)\]: FAILED! => *\n((?: +.*\n|\n)+)", self.output, re.MULTILINE)
        return {host: str(yaml.safe_load(block)["msg"]) for host, block in blocks}

    def tasks_changed(self) -> set[str]:
        """The titles of the tasks that changed something."""
        parts = re.split(r"^TASK \[(?:[^\]]* : )?([^\]]*)\] \**$", self.output, flags=re.MULTILINE)
        return {name for name, body in zip(parts[1::2], parts[2::2]) if re.search(r"^changed: ", body, re.MULTILINE)}


class Operator:
    """Somebody with a checkout, an inventory and a shell."""

    def __init__(self, inventory: str, hosts: t.Mapping[str, t.Any], folder: Path) -> None:
        self.root = ROOT
        self.inventory = inventory
        self.hosts = hosts
        self.folder = folder

    def play(
        self,
        playbook: str,
        *options: str,
        variables: t.Optional[Variables] = None,
        host_variables: t.Optional[t.Mapping[str, Variables]] = None,
        environment: t.Optional[t.Mapping[str, str]] = None,
    ) -> Play:
        """Run a playbook of the collection; variables come from files, as from a vault, so that none is in a command line."""
        inventory, extra = self.folder / "more-hosts.json", self.folder / "variables.json"
        inventory.write_text(json.dumps({"gpu_hosts": {"hosts": dict(host_variables or {})}}))
        extra.write_text(json.dumps(dict(variables or {})))
        command = ["ansible-playbook", f"--inventory={self.inventory}", f"--inventory={inventory}", f"--extra-vars=@{extra}"]
        done = subprocess.run(
            [str(Path(sys.executable).parent / command[0]), *command[1:], *options, str(ROOT / "playbooks" / f"{playbook}.yml")],
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **(environment or {})},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout)
        return Play(done.returncode, done.stdout)

    def play_until(self, task: str, playbook: str, *options: str, variables: t.Optional[Variables] = None) -> None:
        """Run a playbook that is killed, with no chance to tidy up, before the first task whose title begins so."""
        environment = {"ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "molecule" / "support"), "ANSIBLE_CALLBACKS_ENABLED": "killed_before"}
        play = self.play(playbook, *options, variables=variables, environment={**environment, "KILLED_BEFORE": task})
        assert play.status == -signal.SIGKILL, play.output

    def ask(self, host: str, module: str, **options: t.Any) -> dict[str, t.Any]:
        """What a module of the collection answers on one host."""
        command = [str(Path(sys.executable).parent / "ansible"), f"--inventory={self.inventory}", host]
        done = subprocess.run(
            [*command, f"--module-name=gpufleet.vllm.{module}", f"--args={json.dumps(options)}"],
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout, done.stderr)
        answer: dict[str, t.Any] = json.loads(done.stdout.rpartition(" => ")[2])
        return answer

    def on_all(self, command: str) -> dict[str, str]:
        """What a command answers on each host."""
        return {name: str(host.run(command).stdout) for name, host in self.hosts.items()}

    def hub(self, **order: t.Any) -> dict[str, t.Any]:
        """Give the model hub an order; the answer holds its log."""
        code = "import sys, urllib.request as u; print(u.urlopen('http://hub:8080/_control', sys.argv[1].encode()).read().decode())"
        host = next(iter(self.hosts.values()))
        answer: dict[str, t.Any] = json.loads(host.check_output(f'python3 -c "{code}" %s', json.dumps(order)))
        return answer


@pytest.fixture
def unit(host: t.Any) -> Unit:
    return Unit(host)


@pytest.fixture
def units(operator: Operator) -> dict[str, Unit]:
    return {name: Unit(host) for name, host in operator.hosts.items()}


@pytest.fixture(scope="session")
def operator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    inventory = request.config.getoption("ansible_inventory")
    found = testinfra.get_hosts([request.config.getoption("hosts")], ansible_inventory=inventory)
    return Operator(inventory, {host.backend.host: host for host in found}, tmp_path_factory.mktemp("operator"))


@pytest.fixture
def drop_in() -> t.Iterator[t.Callable[..., None]]:
    """Adds lines to the service of a unit on a host, for the next start of it, until the test is over."""
    folders = []

    def add(host: t.Any, unit: str, *lines: str) -> None:
        folder = f"/run/systemd/system/{unit}.d"
        folders.append((host, folder))
        text = "\n".join(["[Service]", *lines, ""])
        host.check_output(f"mkdir -p {folder} && printf %s {shlex.quote(text)} > {folder}/50-test.conf && systemctl daemon-reload")

    yield add
    for host, folder in folders:
        host.check_output(f"rm -rf {folder} && systemctl daemon-reload")
