# Losses over the samples trained. data: a block of "samples loss" for each of `series`, named name1, name2...
load plots."/style.gp"
set title title_text noenhanced
set xlabel "samples"
set ylabel "loss"
set key top right samplen 2 noenhanced
plot for [i=1:series] data index i - 1 using 1:2 with linespoints pt 7 ps 0.4 lw 1.5 lc rgb (i == 1 ? blue : orange) \
       title value(sprintf("name%d", i))
