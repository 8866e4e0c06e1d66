# One training step as a Gantt chart. data: blocks separated by two blank lines,
# block 0: row number and label; blocks 1 to 6: start_ms end_ms row, by kind. blocks: those of them that have boxes.
load plots."/style.gp"
set label title_text at screen 0.5, screen 1 - 16.0 / height center noenhanced tc rgb dark
set tmargin at screen 1 - 58.0 / height
set xlabel "milliseconds"
set key at screen 0.55, screen 1 - 40.0 / height center horizontal samplen 1 Left reverse width 1
set yrange [-0.7:rows - 0.3]
set xrange [0:longest_ms * 1.005]
set grid xtics noytics
set border 1
set ytics scale 0
set style fill solid 1.0 noborder
kinds = "forward backward recomputation optimizer communication copies"
colors = "#56b4e9 #0072b2 #e69f00 #009e73 #d55e00 #999999"
plot data index 0 using (-1e9):1:yticlabels(2) with points pt 7 notitle, \
     for [b in blocks] data index int(b) using (($1 + $2) / 2):3:1:2:($3 - 0.38):($3 + 0.38) with boxxyerror \
       lc rgb word(colors, int(b)) title word(kinds, int(b))
