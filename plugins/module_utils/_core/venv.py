# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine venvs: what one should hold, how uv is told, what its failures mean. PRIVATE to the collection.

A venv is built where it stays, because the scripts in it name their interpreter by absolute path. It counts as complete only
by its marker file, which is written last: whatever a killed run leaves has no marker, and the next run starts over.
"""

from __future__ import annotations

import hashlib
import json
import re
import typing as t
from urllib.parse import unquote, urlsplit

from .effects import Clock, CommandResult, Sleep
from .errors import VllmError
from .redaction import HIDDEN, without_secrets

__all__ = [
    "BUILDING",
    "MARKER",
    "SYSTEM_PATH",
    "Marker",
    "Source",
    "Spec",
    "check_interpreter",
    "check_spec",
    "explain",
    "freeze_command",
    "install_command",
    "interpreter_home",
    "marker_of",
    "parse_freeze",
    "parse_marker",
    "redact",
    "refuse_other_spec",
    "secrets_of",
    "uv_environment",
    "venv_command",
    "wait_for_lock",
]

MARKER = ".gpufleet-complete.json"
BUILDING = ".gpufleet-building"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"v?[0-9][A-Za-z0-9.!+_-]*")
# What systemd's ProtectHome=yes hides from a unit.
_HOMES = ("/home", "/root", "/run/user")
# Where programs are looked for on a host, as systemd does for units.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TELLING = ("error:", "cause:", "hint:")
_LONGEST = 700


class Spec(t.NamedTuple):
    """What a venv holds: a different spec is a different venv. Where the packages came from is not part of it."""

    package: str
    version: str
    extra_packages: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    python: str = "/usr/bin/python3"
    command: str = "vllm"

    @property
    def requirement(self) -> str:
        """The engine as a pinned requirement."""
        return f"{self.package}=={self.version}"

    @property
    def digest(self) -> str:
        """A hash that differs as soon as anything in the spec does; the order of requirements does not count."""
        content = {**self._asdict(), "extra_packages": sorted(self.extra_packages), "overrides": sorted(self.overrides)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Source(t.NamedTuple):
    """Where uv looks for packages."""

    index_url: t.Optional[str] = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False


class Marker(t.NamedTuple):
    """What the marker file says of a complete venv."""

    spec: str
    requirement: str
    python_version: str
    packages: dict[str, str]

    def to_json(self) -> str:
        """The text of the marker file."""
        return json.dumps(self._asdict(), indent=2, sort_keys=True) + "\n"


def check_spec(spec: Spec, source: Source) -> None:
    """Refuse what cannot be meant, before anything is touched."""
    if not _NAME.fullmatch(spec.package):
        raise VllmError(
            f"The option package is {spec.package!r}, which is no name of a package.",
            code="bad_option",
            remedy="Name the package alone and give its version by the option version.",
        )
    if not _VERSION.fullmatch(spec.version):
        raise VllmError(
            f"The option version is {spec.version!r}, which is not one exact version.",
            code="bad_option",
            remedy="Pin the engine, for example to 0.33.0.",
        )
    for option, values in (("find_links", source.find_links), ("extra_packages", spec.extra_packages), ("overrides", spec.overrides)):
        if secrets_of(values):
            raise VllmError(
                f"The option {option} holds an address with credentials in it, which would be shown and recorded.",
                code="bad_option",
                remedy="Give an address with credentials by index_url or extra_index_urls only, which are kept secret.",
            )
    if source.no_index and (source.index_url or source.extra_index_urls):
        raise VllmError(
            "The option no_index contradicts index_url and extra_index_urls.",
            code="bad_option",
            remedy="Leave out either no_index or the indexes.",
        )
    if source.no_index and not source.find_links:
        raise VllmError(
            "The option no_index is set, but find_links names no folder of wheels.",
            code="bad_option",
            remedy="Name a folder that holds the engine's wheels by find_links.",
        )


def check_interpreter(python: str) -> None:
    """Refuse an interpreter that units cannot see; a version such as ``3.12`` is left to uv."""
    if any(python == home or python.startswith(f"{home}/") for home in _HOMES):
        raise VllmError(
            f"The interpreter {python} lies in a home directory, which is hidden from the engine's unit (ProtectHome=yes).",
            code="python_in_home",
            remedy="Name one outside of /home and /root by the option python, for example /usr/bin/python3.",
        )


def secrets_of(texts: t.Iterable[str]) -> list[str]:
    """User names, passwords and tokens in the addresses found in these texts, as written and decoded, longest first."""
    found: set[str] = set()
    for address in re.findall(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"']+", " ".join(texts)):
        login, at, _host = urlsplit(address).netloc.rpartition("@")
        parts = [part for part in login.split(":") if part] if at else []
        # A user name beside a password is no secret, and often a common word.
        found.update(parts[-1:])
    return sorted(found | {unquote(part) for part in found}, key=len, reverse=True)


def redact(text: str, secrets: t.Collection[str]) -> str:
    """The text with every secret, and every login in an address, starred out."""
    return re.sub(r"(://)[^/\s@\"']+@", rf"\1{HIDDEN}@", str(without_secrets(text, secrets)))


def uv_environment(source: Source, python_dir: str, cache_dir: str) -> dict[str, str]:
    """Settings of uv that must not be seen in its arguments (indexes may hold credentials), or that units depend on."""
    environment = {
        # Interpreters of the person who is logged in (pyenv, uv's own) lie in a home and are not meant.
        "PATH": SYSTEM_PATH,
        "UV_PYTHON_INSTALL_DIR": python_dir,
        # On the file system of the venvs uv links files instead of copying them, so versions share what is the same in them.
        "UV_CACHE_DIR": cache_dir,
        "UV_PYTHON_DOWNLOADS": "never" if source.no_index else "automatic",
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
    }
    if source.index_url:
        environment["UV_DEFAULT_INDEX"] = source.index_url
    if source.extra_index_urls:
        environment["UV_INDEX"] = " ".join(source.extra_index_urls)
    return environment


def venv_command(uv: str, dest: str, spec: Spec) -> list[str]:
    """Create the venv; the folder is there already, holding the mark that it is being built."""
    return [uv, "venv", "--no-project", "--allow-existing", "--python", spec.python, dest]


def install_command(uv: str, dest: str, spec: Spec, source: Source, overrides_file: str) -> list[str]:
    """Install everything in one resolution. The engine comes as a wheel or not at all: building it takes hours and compilers.

    Bytecode is compiled now, because the unit cannot write it: without it each start compiles what it imports again.
    """
    command = [uv, "pip", "install", "--python", f"{dest}/bin/python", "--only-binary", spec.package, "--compile-bytecode"]
    command += ["--no-index"] if source.no_index else []
    for place in source.find_links:
        command += ["--find-links", place]
    command += ["--overrides", overrides_file] if spec.overrides else []
    return [*command, spec.requirement, *spec.extra_packages]


def freeze_command(uv: str, dest: str) -> list[str]:
    """List what the venv holds."""
    return [uv, "pip", "freeze", "--python", f"{dest}/bin/python"]


def parse_freeze(text: str) -> dict[str, str]:
    """Package names to versions; a package installed from an address has that address for a version."""
    packages = {}
    for line in text.splitlines():
        name, separator, version = re.split(r"(==| @ )", line.strip(), maxsplit=1) if re.search(r"==| @ ", line) else ("", "", "")
        if separator:
            packages[name] = version
    return packages


def interpreter_home(pyvenv_cfg: str) -> tuple[str, str]:
    """Folder and version of the interpreter that a venv was made with, from the text of its pyvenv.cfg."""
    settings = dict(re.findall(r"^\s*([\w-]+)\s*=\s*(.*?)\s*$", pyvenv_cfg, flags=re.MULTILINE))
    return settings.get("home", ""), settings.get("version_info", "")


def marker_of(spec: Spec, python_version: str, packages: dict[str, str]) -> Marker:
    """The marker of a venv that was just built."""
    return Marker(spec=spec.digest, requirement=spec.requirement, python_version=python_version, packages=packages)


def parse_marker(text: str) -> t.Optional[Marker]:
    """What the marker file says, or nothing when it is not one of ours."""
    try:
        content = json.loads(text)
        return Marker(*(content[field] for field in Marker._fields))
    except (ValueError, KeyError, TypeError):
        return None


def refuse_other_spec(dest: str, marker: Marker, spec: Spec) -> None:
    """Engine venvs are immutable: a running engine, or a release to go back to, may depend on this one."""
    if marker.spec != spec.digest:
        what = "with other extra packages, overrides, command or interpreter" if marker.requirement == spec.requirement else ""
        raise VllmError(
            f"{dest} already holds {marker.requirement} {what}".rstrip()
            + f", not {spec.requirement} as asked, and engine venvs are immutable.",
            code="other_engine",
            remedy="Choose another dest, or remove this one once no deployment uses it.",
        )


def wait_for_lock(try_lock: t.Callable[[], bool], dest: str, timeout: float, clock: Clock, sleep: Sleep) -> None:
    """Wait until no other run works on this venv; what that run is doing may be just what is wanted."""
    deadline = clock() + timeout
    while not try_lock():
        if clock() >= deadline:
            raise VllmError(
                f"Another installation into {dest} is still under way after {timeout:.0f} s.",
                code="busy",
                remedy="Wait for it to end, or end its uv process, and run again.",
            )
        sleep(0.5)


def explain(result: CommandResult, spec: Spec, source: Source, secrets: t.Sequence[str]) -> VllmError:
    """The failure of uv in its own telling lines, with what to do about it."""
    reason = redact(_telling_lines(result), secrets)
    code, remedy = _meaning(reason, spec, source)
    return VllmError(f"uv could not install {spec.requirement}: {reason}", code=code, remedy=remedy, details={"rc": result.rc})


def _telling_lines(result: CommandResult) -> str:
    """The lines in which uv says what is wrong, on one line, never the log around them."""
    lines = [line.strip() for line in (result.err or result.out).splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if line.startswith(_TELLING)), max(0, len(lines) - 3))
    text = " ".join(re.sub(r"^(error|cause):\s*", "", line) for line in lines[start : start + 12])
    text = text or f"it ended with status {result.rc} and said nothing"
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return text if text.endswith((".", "…", "!")) else f"{text}."


def _meaning(reason: str, spec: Spec, source: Source) -> tuple[str, str]:
    """A stable code and a remedy for what uv said."""
    where = f"the folder in find_links ({', '.join(source.find_links)})" if source.no_index else "the index"
    for pattern, code, remedy in _meanings(spec, where):
        if re.search(pattern, reason):
            return code, remedy
    return "install_failed", "Run uv by hand on this host with the same arguments to see its whole output."


def _meanings(spec: Spec, where: str) -> tuple[tuple[str, str, str], ...]:
    """What uv says, the code, the remedy. The order counts: uv gives several reasons at once, the deeper ones first here."""
    return (
        (
            r"No space left on device|os error 122",
            "disk_full",
            "Free space for the venv (an engine takes 3 to 12 GB) and for uv's cache (UV_CACHE_DIR).",
        ),
        (
            r"Hash mismatch",
            "hash_mismatch",
            f"The file in {where} is not the published one: fetch it again, and use nothing from there until you know why.",
        ),
        (
            r"No interpreter found|No Python (installation|download)",
            "python_missing",
            f"Install the interpreter {spec.python}, or name another one by the option python.",
        ),
        (
            r"401 Unauthorized|403 Forbidden|authentication credentials",
            "access_denied",
            "Check the credentials in index_url and extra_index_urls.",
        ),
        (
            r"Failed to fetch|Failed to download|network was disabled|error sending request",
            "index_unreachable",
            "Check the host's way to the index (proxy, certificates, name resolution), or install offline with find_links and no_index.",
        ),
        (
            r"no wheels with a matching|only found wheels|no compatible wheels",
            "no_matching_wheel",
            f"Choose by the option python an interpreter that {where} has wheels for.",
        ),
        (r"--find-links", "wheel_folder_missing", "Put the folder of wheels on the host, or correct find_links."),
        (r"invalid package format|Failed to read from zip", "damaged_wheel", f"Fetch the wheel in {where} again."),
        (
            r"there (is|are) no versions? of|was not found in",
            "not_found",
            f"Correct package and version, or add the missing wheel to {where}.",
        ),
        (
            r"unsatisfiable|No solution found",
            "conflict",
            "Change the versions asked for, or take the package in the way out with a line in overrides.",
        ),
    )
