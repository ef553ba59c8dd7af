"""What the documentation site needs beyond MkDocs: the README as a page, notebooks as pages, and no foreign host."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README and LICENSE, and give each notebook a page beside the file itself."""
    files.append(File.generated(config, "readme.md", content=from_docs((ROOT / "README.md").read_text("utf-8"))))
    files.append(File.generated(config, "LICENSE.txt", content=(ROOT / "LICENSE").read_text("utf-8")))
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            notebook = json.loads(Path(str(file.abs_src_path)).read_text("utf-8"))
            content = page_of(notebook, download=file.src_uri.rpartition("/")[2])
            files.append(File.generated(config, f"{file.src_uri.removesuffix('.ipynb')}.md", content=content))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let the navigation name notebooks by their files."""
    config.nav = json.loads(re.sub(r'\.ipynb"', '.md"', json.dumps(config.nav)))
    return config


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links out of docs/ and to notebooks work on GitHub as they stand; here they lead to pages."""
    markdown = re.sub(r"\]\((?:\.\./)+README\.md(#[\w-]+)?\)", rf"]({up(page)}readme.md\1)", markdown)
    if page.file.src_uri.startswith("notebooks/"):
        return markdown
    return re.sub(r"\]\(((?:[\w./-]+/)?[\w-]+)\.ipynb\)", r"](\1.md)", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail where a page would fetch anything from another host.

    Raises:
        PluginError: Naming the page and the address.
    """
    fetched = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//[^\s\">]+|"
                         r"<link\b(?=[^>]*rel=\"?(?:stylesheet|preconnect|preload|icon))[^>]*href=\"?(?:https?:)?//[^\s\">]+|"
                         r"(?:url\(|@import )[\"']?(?:https?:)?//[^\s\"')]+")  # fmt: skip
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css") and (found := fetched.search(path.read_text("utf-8"))):
            raise PluginError(f"{path.relative_to(config.site_dir)} fetches from another host: {found[0][:200]}")


def up(page: Page) -> str:
    """The way from a page's source to the top folder of the docs."""
    return "../" * page.file.src_uri.count("/")


def from_docs(readme: str) -> str:
    """The README as if it lay in docs/."""
    return readme.replace("](docs/", "](").replace("](LICENSE)", "](LICENSE.txt)")


def page_of(notebook: dict[str, Any], download: str) -> str:
    """A notebook as Markdown: texts, code and outputs.

    Args:
        notebook: In the format of nbformat 4.
        download: Name of its file, which lies beside the page.
    """
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\((\.\./)?([\w/-]+)\.ipynb\)", r"](\1\2.md)", source))
        elif cell["cell_type"] == "code" and source:
            parts.append(f"```python\n{source}\n```")
            parts += [shown for output in cell["outputs"] if (shown := output_of(output))]
    link = f'<p class="notebook"><a href="../{download}" download>Download this notebook</a></p>'
    return "\n\n".join([parts[0], link, *parts[1:]]) + "\n"


def output_of(output: dict[str, Any]) -> str:
    """One output of a code cell: a picture, HTML, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<div class="output"><img alt="Plot" src="data:image/png;base64,{picture}"></div>'
    if "text/html" in data:
        # Blank lines would end the block of HTML.
        piece = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
        return f'<div class="output">{piece}</div>'
    text = "".join(data.get("text/plain", "") or output.get("text", ""))
    return f'<pre class="output">{html.escape(text.rstrip())}</pre>' if text.strip() else ""
