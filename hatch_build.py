"""README as the description of a package, where relative links lead nowhere: they get the address that is configured.

In pyproject.toml, once there is a place where the repository can be browsed::

    [tool.hatch.metadata.hooks.custom]
    links = "https://HOST/OWNER/NAME/blob/v0.1.0/"
    images = "https://HOST/OWNER/NAME/raw/v0.1.0/"

Without these settings, README stays as it is. The build needs hatchling alone.
"""

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?P<mark>!?)(?P<text>\[[^\]]*\])\((?P<target>(?!\w+:|#)[^)\s]+)\)")


def absolute(readme: str, links: str = "", images: str = "") -> str:
    """Return README with its relative links and images below these addresses; an empty one leaves them as they are.

    Example:
        >>> absolute("[a](docs/a.md#b) ![c](c.svg) [d](#e)", "https://example.org/a/", "https://example.org/b/")
        '[a](https://example.org/a/docs/a.md#b) ![c](https://example.org/b/c.svg) [d](#e)'
    """

    def moved(link: re.Match[str]) -> str:
        return f"{link['mark']}{link['text']}({images if link['mark'] else links}{link['target']})"

    return LINK.sub(moved, readme)


def get_metadata_hook() -> type:
    """Return the hook that hatchling runs."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class Readme(MetadataHookInterface):  # type: ignore[misc]  # hatchling is there only during a build
        """Set ``readme``, which pyproject.toml declares as dynamic."""

        def update(self, metadata: dict[str, Any]) -> None:
            """Add the text of README to the metadata."""
            text = Path(self.root, "README.md").read_text(encoding="utf8")
            addresses = {name: self.config[name] for name in ("links", "images") if name in self.config}
            metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, **addresses)}

    return Readme
