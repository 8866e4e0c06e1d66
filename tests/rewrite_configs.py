"""Rewrites configuration files as other programs do: rewrite_configs.py FOLDER [classes].

JSON is loaded and dumped by Python's json, YAML by PyYAML, each with its keys in alphabetical order and without comments.
With "classes", YAML that accelerate reads is loaded and saved by accelerate's own configuration class. Prints how many
files were rewritten; status 3: PyYAML (or accelerate) is not installed.
"""
import glob
import json
import os
import sys

try:
    import yaml

    if sys.argv[2:] == ["classes"]:
        from accelerate.commands.config.config_args import ClusterConfig
except ImportError as error:
    print(error)
    sys.exit(3)

count = 0
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*"))):
    if path.endswith(".json"):
        with open(path) as file:
            config = json.load(file)
        with open(path, "w") as file:
            json.dump(config, file, sort_keys=True)
    elif path.endswith(".yaml") and sys.argv[2:] == ["classes"]:
        with open(path) as file:
            if "distributed_type" not in file.read():
                continue
        ClusterConfig.from_yaml_file(path).to_yaml_file(path)
    elif path.endswith(".yaml"):
        with open(path) as file:
            config = yaml.safe_load(file)
        with open(path, "w") as file:
            yaml.safe_dump(config, file)
    else:
        continue
    count += 1
print(count)
