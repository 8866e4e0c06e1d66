# Losses over virtual time, and below what the first run spent its time on. data: a block of "seconds loss" for each of
# `series`, named name1, name2...; then a block of "from to" for each of `kinds`, which are pairs of a number and a name.
# marks: what happened, mark1, mark1_from, mark1_until...: a line, and a shade for as long as it lasts.
height = 520
load plots."/style.gp"
set multiplot title title_text noenhanced
set xrange [0:longest_s * 1.005]
set lmargin at screen 0.08
set rmargin at screen 0.97
set tmargin at screen 0.90
set bmargin at screen 0.42
set ylabel "loss"
set format x ""
set key top right samplen 2 noenhanced
colors = "#0072b2 #e69f00 #009e73 #d55e00 #56b4e9 #cc79a7 #f0e442 #999999"
rust = "#d55e00"
do for [i=1:marks] {
  from = value(sprintf("mark%d_from", i))
  until = value(sprintf("mark%d_until", i))
  set arrow i from first from, graph 0 to first from, graph 1 nohead dt 2 lw 1 lc rgb rust back
  set label i value(sprintf("mark%d", i)) at first from, graph 0.05 + 0.075 * ((i - 1) % 4) offset 0.5,0 left \
      noenhanced tc rgb rust font ",11"
  if (until > from) {
    set object i rectangle from first from, graph 0 to first until, graph 1 fc rgb rust \
        fs transparent solid 0.10 noborder behind
  }
}
plot for [i=1:series] data index i - 1 using 1:($1 < 0 ? NaN : $2) with linespoints pt 7 ps 0.4 lw 1.5 \
       lc rgb word(colors, (i - 1) % 8 + 1) title value(sprintf("name%d", i))
unset label
unset object
set tmargin at screen 0.32
set bmargin at screen 0.14
set format x "%g"
set xlabel "virtual seconds"
unset ylabel
unset ytics
set yrange [-0.1:1]
set border 1
set grid noytics xtics
set key at screen 0.5, screen 0.36 center horizontal samplen 1 Left reverse
shades = "#56b4e9 #e69f00 #009e73 #d55e00 #333333 #999999 #cc79a7 #f0e442"
plot for [k=1:words(kinds)/2] data index series + k - 1 using (($1 + $2) / 2):(0.4):1:2:(0.0):(0.8) with boxxyerror \
       lc rgb word(shades, int(word(kinds, 2 * k - 1))) title word(kinds, 2 * k)
unset multiplot
