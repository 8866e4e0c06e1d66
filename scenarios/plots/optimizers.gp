# How much faster whole trainings are with optimizers that compress, over the bandwidth of the network.
# data: bandwidth in bit/s, then one column for each optimizer: AdamW's time over its time. names: their names, as words.
load plots."/style.gp"
set title title_text noenhanced
set xlabel "network bandwidth, Gbit/s"
set ylabel "AdamW's time over this time"
set logscale x
set yrange [0:*]
set key top right samplen 2
array colors[6] = [blue, orange, green, red, sky, pink]
array points[6] = [7, 5, 9, 11, 13, 3]
plot 1 with lines lw 1 lc rgb dark notitle, \
     for [k=1:words(names)] data using ($1/1e9):(column(k + 1)) with linespoints pt points[(k - 1) % 6 + 1] ps 0.7 lw 2 \
       lc rgb colors[(k - 1) % 6 + 1] title word(names, k)
