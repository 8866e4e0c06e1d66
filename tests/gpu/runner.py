"""A run made of stages, each with a limit of time and a log. What a stage leaves is among the results at once, so that a run
that is ended at any moment has left all it knew."""
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import time


class Skipped(Exception):
    """Nothing to do here, and why."""


class Failed(Exception):
    """What was found wrong."""


class Run:
    """name: of the run. seconds: after which nothing goes on. out: gets the results. work: everything else. commit: what
    was built, since the machine may have no repository. dry: the host in the GPU's place."""

    RESULTS = ("device.json", "comparisons.jsonl", "profile.json", "steps.json", "versus.json", "cache.tar.gz")

    def __init__(self, name, seconds, out, work, commit, dry, only, skip):
        self.name, self.out, self.work, self.commit, self.dry = name, out, work, commit, dry
        self.only, self.skip = re.compile(only), re.compile(skip)
        self.slower = 6 if dry else 1  # the host takes its time
        self.begin = time.monotonic()
        self.end = self.begin + seconds * self.slower
        self.stages, self.settings = [], {}
        self.emulated = False
        self.here, self.lock = threading.local(), threading.RLock()  # a thread's stage; what all threads write
        os.makedirs(out, exist_ok=True)
        shutil.rmtree(os.path.join(work, "log"), ignore_errors=True)
        os.makedirs(os.path.join(work, "log"))

    @property
    def limit(self):
        return getattr(self.here, "limit", self.end)

    @property
    def log(self):
        return getattr(self.here, "log", None)

    def enter(self, limit, log):
        """This thread works for the stage with that limit and that log."""
        self.here.limit, self.here.log = limit, log

    def path(self, name):
        return os.path.join(self.work, name)

    def left(self):
        return max(0.0, min(self.limit, self.end) - time.monotonic())

    # ---- commands of a stage ----

    def command(self, argv, env=None, check=True, input=None):
        """Runs it within the stage's limit, with its children in one group, and returns what it wrote to standard output;
        that and what it wrote to standard error is in the stage's log."""
        self.say("$ " + " ".join(map(str, argv)))
        process = subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE if input else subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   env={**os.environ, **self.settings, **(env or {})}, start_new_session=True)
        try:
            text, errors = process.communicate(input, timeout=max(self.left(), 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                text, errors = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, errors = process.communicate()
            self.say(text + errors)
            raise TimeoutError(os.path.basename(str(argv[0]))) from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        self.say(text + errors)
        if check and process.returncode != 0:
            raise Failed("%s ended with status %d" % (os.path.basename(str(argv[0])), process.returncode))
        return text

    def say(self, text):
        with self.lock:
            if self.log:
                self.log.write(text.rstrip("\n") + "\n")
                self.log.flush()

    # ---- stages ----

    def stage(self, name, seconds, function, *arguments):
        """True when it passed. One that has less than a third of its time left is not begun."""
        if not self.only.search(name) or self.skip.search(name):
            return False
        seconds *= self.slower
        self.enter(self.end, None)
        if self.left() < max(3, seconds / 3):
            self.record(name, "no time", "", 0)
            return False
        start = time.monotonic()
        result, why = "passed", ""
        with open(self.path("log/%s.txt" % name), "w", encoding="utf-8") as log:
            self.enter(start + seconds, log)
            try:
                function(self, *arguments)
            except Skipped as reason:
                result, why = "skipped", str(reason)
            except TimeoutError as reason:
                result, why = "timed out", str(reason)
            except Failed as reason:
                result, why = "failed", str(reason)
            except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError) as reason:
                result, why = "failed", "%s: %s" % (type(reason).__name__, reason)
            self.say("%s %s" % (result, why))
        self.enter(self.end, None)
        self.record(name, result, why, time.monotonic() - start)
        return result == "passed"

    def fails(self, name, seconds, function, *arguments):
        """Runs the stage: did it fail? One that was not begun did not."""
        before = len(self.stages)
        self.stage(name, seconds, function, *arguments)
        return any(s["result"] in ("failed", "timed out") for s in self.stages[before:])

    def together(self, *lanes):
        """Lanes of stages, each a list of what `stage` takes, one lane beside the others: none of them may be of times."""
        def run(lane):
            for arguments in lane:
                self.stage(*arguments)

        threads = [threading.Thread(target=run, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def record(self, name, result, why, seconds):
        with self.lock:
            self.record_alone(name, result, why, seconds)

    def record_alone(self, name, result, why, seconds):
        self.stages.append({"stage": name, "result": result, "seconds": round(seconds, 1), "why": why})
        print("%5.0f s  %-22s %-10s %5.1f s  %s" % (time.monotonic() - self.begin, name, result, seconds, why), flush=True)
        if result in ("failed", "timed out"):
            try:
                with open(self.path("log/%s.txt" % name), encoding="utf-8") as log:
                    for line in log.read().rstrip("\n").split("\n")[-9:-1]:
                        print("         " + line[:200], flush=True)
            except OSError:
                pass
        self.pack()

    def failed(self):
        return any(s["result"] not in ("passed", "skipped") for s in self.stages)

    # ---- results ----

    def add_line(self, name, value):
        with self.lock, open(self.path(name), "a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def pack(self):
        """At most eight files a run: `Run.RESULTS`, summary.json, which keeps what other runs wrote there, and the logs."""
        summary = {"schema": "twinspeed-gpu-run-2", "run": self.name, "commit": self.commit, "dry_run": self.dry, "emulated": self.emulated,
                   "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                   "settings": self.settings, "stages": self.stages}
        path, others = os.path.join(self.out, "summary.json"), []
        try:
            with open(path, encoding="utf-8") as file:
                others = [one for one in json.load(file) if one["run"] != self.name]
        except (OSError, ValueError, TypeError, KeyError):
            pass  # there is none, or it is not such a list
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(others + [summary], file, indent=1)
        os.replace(path + ".new", path)
        for name in self.RESULTS:
            if os.path.exists(self.path(name)):
                shutil.copy(self.path(name), self.out)
        with tarfile.open(os.path.join(self.out, "logs-%s.tar.gz" % self.name), "w:gz") as archive:
            for folder, _, files in os.walk(self.work):
                for name in files:
                    path = os.path.join(folder, name)
                    if name.endswith((".txt", ".csv", ".json", ".jsonl")) and os.path.getsize(path) < 4 << 20:
                        archive.add(path, os.path.relpath(path, self.work))
