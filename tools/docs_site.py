"""mkdocs hooks of mkdocs.yml: the list of decisions, and links that leave docs/."""

import re
from pathlib import Path

OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)]+)\)")


def on_config(config):
  """Fills the section "Decisions" of the navigation with the files of docs/decisions."""
  docs = Path(config["docs_dir"])
  pages = sorted(str(page.relative_to(docs)) for page in docs.glob("decisions/*.md"))
  for section in config["nav"]:
    if "Inside" in section:
      section["Inside"].append({"Decisions": pages})


def on_page_markdown(markdown, page, **_):
  """A file outside docs/ is not on the site: its link becomes its name. tests/test_docs.py checks
  that it exists."""
  depth = page.file.src_uri.count("/") + 1  # so many ../ leave docs/

  def name(link):
    text, up, target = link.groups()
    return f"{text} (`{target}`)" if up.count("../") >= depth else link[0]

  return OUTSIDE.sub(name, markdown)
