# Predicted against measured step time. data, one row a configuration:
# number name measured_ms low_ms high_ms predicted_ms error_percent
load plots."/style.gp"
set multiplot layout 2, 1 title title_text noenhanced
set lmargin 9
set rmargin 3
set bmargin 0.6
set tmargin 2.4
set xrange [-0.6:rows - 0.4]
unset xtics
set ylabel "step, milliseconds"
set yrange [0:*]
set offsets 0, 0, graph 0.15, 0
set key top left Left reverse vertical samplen 1 width 2
set grid ytics noxtics
box = 0.36
plot data using ($1 - box / 2):3:(box) with boxes lc rgb blue title "measured (median, quartiles)", \
     data using ($1 + box / 2):6:(box) with boxes lc rgb orange title "predicted", \
     data using ($1 - box / 2):4:(0):($5 - $4) with vectors nohead lw 2 lc rgb dark notitle
set bmargin 8
set tmargin 0.6
set ylabel "error, %"
unset offsets
set yrange [-bound:bound]
set xtics scale 0 nomirror rotate by 35 right noenhanced font ",9"
set object 1 rectangle from graph 0, first -10 to graph 1, first 10 fc rgb "#e8f4ec" fs solid noborder behind
plot data using 1:7:(0.5):xticlabels(2) with boxes lc rgb gray notitle, 0 lc rgb dark notitle
unset multiplot
