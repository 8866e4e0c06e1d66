#!/bin/sh
# Nodes made of network namespaces on one machine, each with a hostname and an address of its own, behind one switch.
#   nodes.sh up N          nodes node1 ... nodeN; status 77 where this machine cannot make them
#   nodes.sh run HOST CMD  a shell command on a node
#   nodes.sh shell HOST CMD...  the same as a remote shell is called
#   nodes.sh sshd N FOLDER an sshd on each node, with keys and an ssh_config in the folder; status 77 where none can be had
#   nodes.sh sshd-off FOLDER
#   nodes.sh rate N BITS   what a node's link sends at most: "100mbit"
#   nodes.sh room N BYTES  what a node's connections hold that is not read yet
#   nodes.sh cut N | mend N  the link of a node
#   nodes.sh pids          processes on any of them
#   nodes.sh down          and away with all, processes too
# TWS_NODES names them apart from others' on this machine.
set -u
prefix=${TWS_NODES:?}
# The outermost first: a node's files may be hidden by mounts, see TWS_NODE_MOUNT.
on_node() {
  host=$1
  shift
  # TWS_NODE_MOUNT="node2 FROM TO": that node sees the file FROM in place of TO.
  set -- "$*" ${TWS_NODE_MOUNT:-}
  mount=
  if [ $# -eq 4 ] && [ "$2" = "$host" ]; then mount="mount --bind '$3' '$4' &&"; fi
  exec ip netns exec "$prefix${host#node}" unshare --uts --mount sh -c "hostname $host && $mount $1"
}
case $1 in
up)
  for tool in ip tc unshare mount hostname; do
    command -v $tool >/dev/null || { echo "no $tool"; exit 77; }
  done
  ip netns add "${prefix}s" 2>/dev/null || { echo "no permission to make network namespaces"; exit 77; }
  ip -n "${prefix}s" link add name hub0 type bridge 2>/dev/null || { echo "no bridges in this kernel"; exit 77; }
  unshare --uts --mount true 2>/dev/null || { echo "no permission to make namespaces"; exit 77; }
  ip -n "${prefix}s" link set hub0 up
  for i in $(seq 1 "$2"); do
    ip netns add "$prefix$i" &&
      ip link add name eth9 netns "$prefix$i" type veth peer name port$i netns "${prefix}s" &&
      ip -n "${prefix}s" link set port$i master hub0 up && ip -n "$prefix$i" addr add 10.77.0.$i/24 dev eth9 &&
      ip -n "$prefix$i" link set eth9 up && ip -n "$prefix$i" link set lo up || { echo "no links between namespaces"; exit 77; }
  done
  ;;
run | shell)
  shift
  on_node "$@"
  ;;
sshd)
  sshd=$(PATH=$PATH:/usr/sbin command -v sshd) && command -v ssh ssh-keygen >/dev/null || { echo "no sshd"; exit 77; }
  mkdir -p "$3" /run/sshd && ssh-keygen -q -t ed25519 -N '' -f "$3/user" || { echo "no keys"; exit 77; }
  for i in $(seq 1 "$2"); do
    ssh-keygen -q -t ed25519 -N '' -f "$3/host$i" || { echo "no keys"; exit 77; }
    echo "10.77.0.$i $(cut -d' ' -f1,2 "$3/host$i.pub")" >>"$3/known_hosts"
    cat >"$3/sshd_config$i" <<END
ListenAddress 10.77.0.$i
HostKey $3/host$i
AuthorizedKeysFile $3/user.pub
PidFile $3/pid$i
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
END
    cat >>"$3/ssh_config" <<END
Host node$i
  HostName 10.77.0.$i
END
    (on_node "node$i" "exec $sshd -f $3/sshd_config$i") >"$3/log$i" 2>&1 || { cat "$3/log$i"; exit 77; }
  done
  cat >>"$3/ssh_config" <<END
Host *
  User $(id -un)
  IdentityFile $3/user
  IdentitiesOnly yes
  UserKnownHostsFile $3/known_hosts
  BatchMode yes
END
  for i in $(seq 1 "$2"); do
    name=$(on_node node1 "ssh -F $3/ssh_config node$i hostname" 2>"$3/error") || { echo "ssh to node$i: $(cat "$3/error")"; exit 77; }
    [ "$name" = "node$i" ] || { echo "node$i calls itself $name"; exit 77; }
  done
  ;;
sshd-off) for file in "$2"/pid*; do kill "$(cat "$file")"; done ;;
rate)
  ip netns exec "$prefix$2" tc qdisc replace dev eth9 root tbf rate "$3" burst 64k latency 200ms 2>/dev/null ||
    { echo "no tbf in this kernel"; exit 77; }
  ;;
room)
  ip netns exec "$prefix$2" sh -c "echo 4096 $3 $3 >/proc/sys/net/ipv4/tcp_rmem" 2>/dev/null || { echo "no tcp_rmem"; exit 77; }
  ;;
cut) ip -n "${prefix}s" link set "port$2" down ;;
mend) ip -n "${prefix}s" link set "port$2" up ;;
pids | down)
  for name in $(ip netns list | cut -d' ' -f1); do
    case $name in
    "$prefix"*)
      if [ "$1" = pids ]; then
        ip netns pids "$name"
      else
        for pid in $(ip netns pids "$name"); do kill -9 "$pid"; done
        ip netns del "$name"
      fi
      ;;
    esac
  done
  ;;
*) exit 2 ;;
esac
