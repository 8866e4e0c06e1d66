"""The program under test: as it was carried here, or, where that does not load, built here."""
import glob
import os
import shutil
import subprocess
import sys
import tarfile

from runner import Failed

# Where both machines see the sources and what was built of them: test programs look for golden files there.
HOME = "/tmp/twinspeed-gpu"
BUILD = HOME + "/build"


def unpack(archive):
    """The folder of what was carried, unpacked once."""
    folder = HOME + "/carried"
    mark = folder + "/.from"
    of = "%s %d" % (archive, os.stat(archive).st_mtime_ns)
    if not os.path.exists(mark) or open(mark, encoding="utf-8").read() != of:
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="fully_trusted")
        with open(mark, "w", encoding="utf-8") as file:
            file.write(of)
    return folder


def link(path, to):
    if os.path.islink(path) or not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.islink(path):
            os.remove(path)
        os.symlink(to, path)


def python_folders():
    """Of the libraries that PyTorch brought: cuBLAS, cuDNN, NCCL."""
    try:
        text = subprocess.run([os.environ.get("PYTHON", sys.executable), "-c",
                               "import nvidia; print('\\n'.join(nvidia.__path__))"], capture_output=True, text=True, timeout=60,
                              check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [folder for root in text.split() for folder in sorted(glob.glob(root + "/*/lib"))]


def use_libraries(run, carried):
    """The carried libraries first, then the toolkit's, then those that PyTorch brought."""
    toolkit = sorted(glob.glob("/usr/local/cuda*/lib64"))
    folders = ([carried + "/lib"] if carried else []) + toolkit + python_folders()
    old = os.environ.get("LD_LIBRARY_PATH")
    run.settings["LD_LIBRARY_PATH"] = ":".join(folders + ([old] if old else []))
    run.settings["PATH"] = ":".join(([carried + "/bin"] if carried else []) + [os.environ["PATH"]] +
                                    sorted(glob.glob("/usr/local/cuda*/bin")))
    run.settings.update({"CUBLASLT_LOG_LEVEL": "1", "CUDNN_LOGLEVEL_DBG": "1", "CUDNN_LOGDEST_DBG": "stderr", "NCCL_DEBUG": "WARN"})
    run.settings.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TWINSPEED_MODULES": BUILD})
    if carried:
        run.settings.update({"OPAL_PREFIX": carried, "OMPI_MCA_mca_base_component_path": carried + "/lib/openmpi",
                             "OMPI_MCA_mca_base_component_show_load_errors": "0"})


def loads(run):
    """The program and its modules load, and a step of a tiny model runs."""
    run.command([BUILD + "/twinspeed", "--version"])
    run.command([BUILD + "/twinspeed", "doctor"], check=False)
    run.train("loads", ["-m", run.tiny("gpt"), "--micro-batch", 2, "--steps", 1, "--dtype", "fp32"])


def build(run, source, carried):
    """From the sources, with the carried packages' headers where this machine has none of its own."""
    arguments = ["-DTWINSPEED_SIM=OFF", "-DTWINSPEED_REAL=ON", "-DTWINSPEED_WERROR=OFF", "-DCMAKE_BUILD_TYPE=Release"]
    if run.dry:
        arguments += ["-DTWINSPEED_CUDA=OFF"]
    else:
        capability = run.command(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).split()[0]
        arguments += ["-DTWINSPEED_CUDA=ON", "-DTWINSPEED_CUDA_ARCHITECTURES=%s-real" % capability.replace(".", "")]
        arguments += [flag for name in ("nccl", "cudnn") for flag in library(name)]
    root = HOME + "/root"
    for package in sorted(glob.glob((carried or "") + "/debs/*.deb")):
        run.command(["dpkg", "-x", package, root])
    if os.path.isdir(root + "/usr"):
        lib = root + "/usr/lib/x86_64-linux-gnu"
        run.settings.update({
            "PKG_CONFIG_SYSROOT_DIR": root, "LIBRARY_PATH": lib,
            "PKG_CONFIG_LIBDIR": ":".join([lib + "/pkgconfig", lib + "/openblas-pthread/pkgconfig",
                                           root + "/usr/share/pkgconfig"])})
        run.settings["LD_LIBRARY_PATH"] = ":".join([lib, lib + "/openblas-pthread", run.settings["LD_LIBRARY_PATH"]])
        run.settings["PATH"] = root + "/usr/bin:" + run.settings["PATH"]
        arguments += ["-DMPI_C_HEADER_DIR=%s/openmpi/include" % lib, "-DMPI_C_LIB_NAMES=mpi",
                      "-DMPI_mpi_LIBRARY=%s/libmpi.so.40" % lib, "-DMPI_ASSUME_NO_BUILTIN_MPI=ON",
                      "-DMPI_SKIP_COMPILER_WRAPPER=ON"]
    if os.path.islink(BUILD):
        os.remove(BUILD)
    run.command(["cmake", "-S", source, "-B", BUILD] + arguments)
    run.command(["cmake", "--build", BUILD, "-j", os.cpu_count(), "--target", "twinspeed-program", "twinspeed_real", "test_kernels",
                 "test_cuda", "bench-experts"] + ([] if run.dry else ["twinspeed_cuda"]))


def library(name):
    for folder in python_folders():
        found = glob.glob("%s/lib%s.so*" % (folder, name))
        if found and os.path.isdir(os.path.dirname(folder) + "/include"):
            return ["-DTWS_%s_INCLUDE=%s/include" % (name.upper(), os.path.dirname(folder)),
                    "-DTWS_%s_LIBRARY=%s" % (name.upper(), found[0])]
    return []


def program(run, source, carried, built=None):
    """built: a build folder of this machine, which is taken as it is."""
    link(HOME + "/source", source)
    use_libraries(run, carried)
    if built:
        link(BUILD, built)
        if not os.path.samefile(BUILD, built):
            raise Failed(BUILD + " is a folder, and not a link to " + built + ": remove it")
        if run.emulated:
            run.use_emulated()
        loads(run)
        return
    if carried and os.path.exists(carried + "/build/twinspeed"):
        link(BUILD, carried + "/build")
        try:
            if run.emulated:
                run.use_emulated()
            loads(run)
            return
        except Failed as reason:
            run.say("what was carried does not run here (%s): building" % reason)
    if run.emulated:
        raise Failed("a rehearsal on the emulated device takes a build: --build FOLDER")
    build(run, HOME + "/source", carried)
    loads(run)
