# Memory over one training step, by category. data: the CSV of the ledger (op,phase,micro_batch,name,<categories>,total);
# phases: those that it has.
load plots."/style.gp"
set datafile separator ","
GiB = 1024.0 ** 3
MiB = 1024.0 ** 2
set title title_text noenhanced
stats data using 1 every ::1 nooutput
last_op = STATS_max
first = 5
last = 4 + categories
stats data using (column(last + 1)) every ::1 nooutput
unit = STATS_max > 2 * GiB ? GiB : MiB
peak = STATS_max / unit
peak_op = STATS_index_max
set ylabel unit == GiB ? "GiB" : "MiB"
set xlabel "operation, in the order of issue"
used = ""
do for [i = first:last] {
  stats data using (column(i)) every ::1 nooutput
  if (STATS_max > 0) { used = used . sprintf(" %d", i) }
}
set key outside right top vertical samplen 1 spacing 1.15 noenhanced reverse Left
set xrange [0:last_op]
set yrange [-0.045 * peak:peak * 1.1]
where = peak_op > 0.9 * last_op ? "right" : peak_op < 0.1 * last_op ? "left" : "center"
colors = "#0072b2 #56b4e9 #e69f00 #009e73 #117733 #f0e442 #cc79a7 #d55e00 #aa4499 #882255 #999999 #dddddd"
color(column) = word(colors, (column - first) % words(colors) + 1)
set label sprintf("peak %.4g %s", peak, unit == GiB ? "GiB" : "MiB") at peak_op, peak * 1.04 @where tc rgb dark
phase(name) = name eq "forward" ? 0x56b4e9 : name eq "backward" ? 0x0072b2 : name eq "recompute" ? 0xe69f00 : 0x009e73
plot for [w = words(used):1:-1] data using 1:(sum [c = first:int(word(used, w))] column(c) / unit) every ::1 \
       with filledcurves y1=0 lc rgb color(int(word(used, w))) title word(names, int(word(used, w)) - first + 1), \
     data using 1:(-0.025 * peak):(phase(strcol(2))) every ::1 with points pt 5 ps 0.8 lc rgb variable notitle, \
     keyentry with points pt 5 ps 0.8 lc rgb "#ffffff" title " ", \
     for [p in phases] keyentry with points pt 5 ps 0.8 lc rgb phase(p) title p
