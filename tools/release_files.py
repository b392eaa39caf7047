"""What lies beside a wheel: a list of what it consists of and needs (CycloneDX), and checksums, signed where a key is named."""

from __future__ import annotations

import email
import hashlib
import json
import re
import subprocess
import uuid
import zipfile
from email.message import Message
from pathlib import Path

SUMS = "SHA256SUMS"
PLACEHOLDER = "example.invalid"
"""The host of addresses that nobody has filled in (RFC 2606): `[project.urls]` of pyproject.toml."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?\s*(?P<versions>[^;]*?)\s*(?:;\s*(?P<marker>.*))?$")


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as zipped:
        name = next(each for each in zipped.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(zipped.read(name))


def bill_of_materials(wheel: Path) -> dict[str, object]:
    """Return the CycloneDX document of a wheel: itself with its hash, and the packages that it requires."""
    about = metadata(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    identity = f"pkg:pypi/{_normalized(about['Name'])}@{about['Version']}"
    components = [_component(text) for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{identity}#{digest}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": identity,
                "name": about["Name"],
                "version": about["Version"],
                "purl": identity,
                "licenses": [{"license": {"id": about["License-Expression"] or about["License"]}}],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        },
        "components": components,
        "dependencies": [{"ref": identity, "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _normalized(name: str) -> str:
    """Return a package's name as PyPI and package URLs write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(requirement: str) -> dict[str, object]:
    """Return a required package; its version is known if it is pinned, else its range is a property."""
    parts = _REQUIREMENT.match(requirement)
    assert parts is not None, requirement
    name = _normalized(parts["name"])
    versions = parts["versions"].strip("() ")
    pinned = versions.removeprefix("==") if re.fullmatch(r"==[\w.]+", versions) else ""
    component: dict[str, object] = {"type": "library", "name": name, "scope": "required"}
    component["purl"] = component["bom-ref"] = f"pkg:pypi/{name}" + (f"@{pinned}" if pinned else "")
    if pinned:
        component["version"] = pinned
    elif versions:
        component["properties"] = [{"name": "versions", "value": versions}]
    return component


def write(folder: Path, sdist: Path, wheel: Path, key: str | None = None) -> list[Path]:
    """Write the list of materials and the checksums of all files; sign the checksums by GnuPG with a key."""
    bill = folder / f"{wheel.name.removesuffix('.whl')}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(wheel), indent=2) + "\n")
    sums = folder / SUMS
    files = sorted((sdist, wheel, bill), key=lambda file: file.name)
    sums.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    if key is None:
        return [bill, sums]
    signature = folder / f"{SUMS}.asc"
    signature.unlink(missing_ok=True)
    command = ("gpg", "--batch", "--local-user", key, "--armor", "--output", signature, "--detach-sign", sums)
    subprocess.run([str(word) for word in command], check=True)
    return [bill, sums, signature]


def wrong_sums(folder: Path) -> list[str]:
    """Return the files of a folder that are missing, whose checksums are wrong, or that have none."""
    listed: dict[str, str] = {}
    for line in (folder / SUMS).read_text().splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    wrong: list[str] = []
    for name, digest in listed.items():
        file = folder / name
        if not file.is_file():
            wrong.append(f"{name} is missing")
        elif hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            wrong.append(f"{name} has another checksum")
    others = {file.name for file in folder.iterdir()} - set(listed) - {SUMS, f"{SUMS}.asc"}
    return wrong + [f"{name} has no checksum" for name in sorted(others)]


def unfilled_urls(about: Message) -> list[str]:
    """Return the addresses of a package's metadata that are placeholders, or that it lacks any."""
    urls = about.get_all("Project-URL", [])
    wrong = [f"[project.urls] of pyproject.toml has a placeholder: {url}" for url in urls if PLACEHOLDER in url]
    return wrong if urls else ["pyproject.toml has no [project.urls]"]
