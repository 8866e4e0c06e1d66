"""make_wheel.py BUILD_FOLDER OUTPUT_FOLDER: a wheel of the Python module, with the libraries that it needs beside it.

A wheel is a zip file of the package and its metadata (PEP 427). The C library and its loader stay the system's."""
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile

SYSTEM = re.compile(r"^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so")


def needed(path):
    """Paths of the shared libraries that the loader finds for a file, but for those of the system."""
    found = {}
    for line in subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or SYSTEM.match(name):
            continue
        if rest.startswith("not found"):
            sys.exit("make_wheel: %s needs %s, which is not found" % (path, name))
        found[name] = rest.split(" (")[0]
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, output = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    library = os.path.join(build, "libtwinspeed.so.0")
    if not os.path.exists(library):
        sys.exit("make_wheel: %s is not there: run make first" % library)
    version = re.search(r"project\(\w+ .*?VERSION (\S+?)[ )]", open(os.path.join(root, "CMakeLists.txt")).read()).group(1)
    files = {"twinspeed/" + name: os.path.join(here, "twinspeed", name)
             for name in sorted(os.listdir(os.path.join(here, "twinspeed"))) if name.endswith(".py")}
    own = [library] + [os.path.join(build, name) for name in ("twinspeed_sim.so",)
                       if os.path.exists(os.path.join(build, name))]
    for path in own:
        files["twinspeed/" + os.path.basename(path)] = os.path.realpath(path)
        for name, place in needed(path).items():
            files["twinspeed/" + name] = os.path.realpath(place)
    info = "twinspeed-%s.dist-info/" % version
    files[info + "licenses/LICENSE"] = os.path.join(root, "LICENSE")
    files[info + "licenses/NOTICE"] = os.path.join(root, "NOTICE")
    tag = "py3-none-linux_" + platform.machine()
    texts = {info + "METADATA": "Metadata-Version: 2.1\nName: twinspeed\nVersion: %s\n"
             "Summary: Predicts and tunes the training of large neural networks\nRequires-Python: >=3.8\n" % version,
             info + "WHEEL": "Wheel-Version: 1.0\nGenerator: twinspeed make_wheel\nRoot-Is-Purelib: false\nTag: %s\n"
             % tag}
    contents = {name: open(path, "rb").read() for name, path in files.items()}
    contents.update({name: text.encode() for name, text in texts.items()})
    record = ""
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += "%s,sha256=%s,%d\n" % (name, digest, len(data))
    contents[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    os.makedirs(output, exist_ok=True)
    wheel = os.path.join(output, "twinspeed-%s-%s.whl" % (version, tag))
    with zipfile.ZipFile(wheel + ".part", "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in contents.items():
            out.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    os.replace(wheel + ".part", wheel)
    print(wheel)


main()
