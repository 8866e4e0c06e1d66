# Share of the time that is work which stays, over the rate of failures. data: failures an hour, measured, formula, in %.
load plots."/style.gp"
set title title_text noenhanced
set xlabel "failures an hour"
set ylabel "goodput, %"
set logscale x
set yrange [0:100]
set key bottom left samplen 2
plot data using 1:3 with lines lw 2 lc rgb blue title "formula", \
     data using 1:2 with points pt 7 ps 0.7 lc rgb orange title "emulated"
