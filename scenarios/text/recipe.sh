# What the recipes of scenarios/ share; they source this file.

say() { printf '\n== %s\n' "$*"; }
show() {
  echo "+ twinspeed $*"
  "$twinspeed" "$@" 2>&1
}

# Makes the empty folder BUILD_FOLDER/NAME with the text in text.txt: that of the file TEXT, or the King James Bible. Sets
# out (that folder), twinspeed (the program) and began (the time, in seconds).
# Usage: begin_recipe NAME BUILD_FOLDER
begin_recipe() {
  build=$(cd "$2" && pwd)
  out=$build/$1
  twinspeed=$build/twinspeed
  [ -x "$twinspeed" ] || twinspeed=twinspeed # a folder without a build: the program on PATH
  began=$(date +%s)
  rm -rf "$out"
  mkdir -p "$out"
  if [ -n "${TEXT:-}" ]; then
    cp "$TEXT" "$out/text.txt"
  else
    command -v bible >/dev/null 2>&1 || { echo "the program bible is missing: ./install.sh" >&2; exit 4; }
    bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$out/text.txt"
  fi
}
