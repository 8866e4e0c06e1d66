#!/bin/sh
# Builds the pages of docs/, the README and CONTRIBUTING as a site with a search, for use without a network:
#
#   docs/site/build.sh FOLDER
#
# writes FOLDER/site. Pages are copied to FOLDER/pages first, where links that leave docs/ are changed: the README is the
# site's first page, and other linked files of the repository are copied too. MKDOCS is the command of mkdocs. The last
# step checks every internal link with its anchor (docs/site/links.py).
set -eu
[ $# = 1 ] || { echo "usage: docs/site/build.sh FOLDER" >&2; exit 2; }
mkdocs=${MKDOCS:-mkdocs}

if ! $mkdocs --version >/dev/null 2>&1; then
  echo "make site: mkdocs does not run (\"$mkdocs --version\")." >&2
  echo "hint: install it with \"apt-get install mkdocs\", or name its command: make site MKDOCS=\"python3 -m mkdocs\"" >&2
  exit 4
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

# Python-Markdown, unlike GitHub, needs an empty line before a list or a table that follows a paragraph, and four blanks
# before the items of a list inside a list.
page() {
  sed -e 's#](\(\.\./\)*README\.md#](index.md#g' -e 's#](\(\.\./\)*CONTRIBUTING\.md#](contributing.md#g' \
      -e 's#](docs/#](#g' -e 's#](\.\./#](files/#g' -e 's#](\(LICENSE\|NOTICE\))#](files/\1)#g' "$1" |
    awk '
      /^```/ { fenced = !fenced }
      !fenced && /^([-*]|[0-9]+\.) / && last != "" && last !~ /^([-*]|[0-9]+\.) / && last !~ /^ / { print "" }
      !fenced && /^\|/ && last != "" && last !~ /^\|/ { print "" }
      !fenced && /^   ?([-*]|[0-9]+\.) / { sub(/^ +/, "    ") }
      { print; last = $0 }' >"$2"
}

rm -rf "$out/pages" "$out/site" # both are made below
mkdir "$out/pages"
for source in docs/*.md; do page "$source" "$out/pages/${source#docs/}"; done
page README.md "$out/pages/index.md"
page CONTRIBUTING.md "$out/pages/contributing.md"
cp -R docs/figures "$out/pages/figures"
grep -oh '](files/[^)]*)' "$out"/pages/*.md | sed 's#](\(.*\))#\1#' | sort -u | while read -r link; do
  mkdir -p "$out/pages/$(dirname "$link")"
  cp "${link#files/}" "$out/pages/$link"
done
cp docs/site/mkdocs.yml "$out/mkdocs.yml"
$mkdocs build --quiet --strict --config-file "$out/mkdocs.yml"
python3 docs/site/links.py "$out/site"
echo "$out/site/index.html: the site; its search needs a server: python3 -m http.server --directory $out/site"
