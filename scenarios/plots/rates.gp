# Evaluation loss over the learning rate, of two optimizers: means of several seeds, and the range of the seeds.
# folder: has AdamW.dat and Muon.dat with rate, mean, lowest and highest loss; data and format as style.gp has them.
load plots."/style.gp"
set title title_text noenhanced
set xlabel "peak learning rate"
set ylabel "evaluation loss"
set logscale x
set format x "%g"
set key top right
plot folder."/AdamW.dat" using 1:2:3:4 with yerrorlines lw 2 pt 7 ps 0.7 lc rgb blue title "AdamW", \
     folder."/Muon.dat" using 1:2:3:4 with yerrorlines lw 2 pt 5 ps 0.7 lc rgb orange title "Muon"
