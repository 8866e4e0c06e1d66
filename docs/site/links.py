"""Checks the links of a site: each refers to a file of the site and, if it has one, to an anchor of that page, and no page
loads anything from another host.

    links.py FOLDER
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """Collects the links of a page, the files that it loads, and its anchors."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        self.anchors.update(names[key] for key in ("id", "name") if names.get(key))
        if tag == "a" and names.get("href"):
            self.links.append(names["href"])
        if tag == "link" and names.get("href") and names.get("rel") != "canonical":
            self.loads.append(names["href"])
        if names.get("src"):
            self.loads.append(names["src"])


def main(folder):
    root = pathlib.Path(folder).resolve()
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    dead, links = [], 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links + page.loads:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    dead.append(f"{path.relative_to(root)}: loads {link} from another host")
                continue
            links += 1
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file() or root not in target.parents:
                dead.append(f"{path.relative_to(root)}: {link} does not exist")
            elif target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
                dead.append(f"{path.relative_to(root)}: {link}: the page has no such anchor")
    for line in dead:
        print(line, file=sys.stderr)
    print(f"{len(pages)} pages, {links} internal links, {len(dead)} dead")
    return 1 if dead else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: links.py FOLDER")
    sys.exit(main(sys.argv[1]))
