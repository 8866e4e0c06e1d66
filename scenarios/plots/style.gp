# Shared by all figures. Called with: plots (folder of the scripts), data (file to read), format ("svg" or "png"),
# title_text. The picture goes to standard output.
# Colours: Okabe and Ito's set, which colour-blind readers can tell apart.
if (!exists("width")) width = 1200
if (!exists("height")) height = 600
if (format eq "svg") {
  set terminal svg size width, height font "DejaVu Sans,12" background "#ffffff"
} else {
  set terminal pngcairo size width, height font "DejaVu Sans,10" background "#ffffff"
}
blue = "#0072b2"; orange = "#e69f00"; green = "#009e73"; red = "#d55e00"; sky = "#56b4e9"; pink = "#cc79a7"
yellow = "#f0e442"; gray = "#999999"; dark = "#333333"
set border 3 lc rgb dark lw 1
set tics nomirror textcolor rgb dark
set grid lc rgb "#dddddd" lw 1 lt 1
set style fill solid 1.0 noborder
