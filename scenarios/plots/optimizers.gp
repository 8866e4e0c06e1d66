# How much faster whole trainings are with optimizers that compress, over the bandwidth of the network.
# data: bandwidth in bit/s, then one column for each optimizer: AdamW's time over its time. names: their names, as words.
load plots."/style.gp"
set title title_text noenhanced
set xlabel "network bandwidth, Gbit/s"
set ylabel "AdamW's time over this time"
set logscale x
set yrange [0:*]
set key top right samplen 2
plot 1 with lines lw 1 lc rgb dark notitle, \
     data using ($1/1e9):2 with linespoints pt 7 ps 0.7 lw 2 lc rgb blue title word(names, 1), \
     data using ($1/1e9):3 with linespoints pt 5 ps 0.7 lw 2 lc rgb orange title word(names, 2)
