# Rscript real_sets.R FOLDER [EXTRA]: grouped data from R packages as CSV files with columns client, y, covariates,
# test1 to test24.  Half of the rows, drawn with set.seed(1) to (24), are test rows.
# EXTRA holds COUNT/medpar.csv, COUNT/azpro.csv, COUNT/rwm5yr.csv and HLMdiag/radon.csv: data of R packages, as CSV files,
# and ml-100k/u.data: the 100,000 ratings of MovieLens.
suppressPackageStartupMessages({library(lme4); library(mlmRev); library(nlme)})
out <- commandArgs(trailingOnly = TRUE)[1]
extra <- commandArgs(trailingOnly = TRUE)[2]
dir.create(out, showWarnings = FALSE, recursive = TRUE)
put <- function(name, data, client, covariates, y) {
  data <- as.data.frame(data)
  rows <- data.frame(client = as.character(data[[client]]), y = data[[y]])
  for (c in covariates) rows[[c]] <- if (is.factor(data[[c]])) as.character(data[[c]]) else data[[c]]
  for (split in 1:24) {
    set.seed(split)
    rows[[paste0("test", split)]] <- as.integer(runif(nrow(rows)) < 0.5)
  }
  write.csv(rows, file.path(out, paste0(name, ".csv")), row.names = FALSE)
}
put("sleepstudy", sleepstudy, "Subject", "Days", "Reaction")
put("machines", Machines, "Worker", "Machine", "score")
put("verbagg", transform(VerbAgg, r = as.integer(r2 == "Y")), "id", c("Anger", "Gender", "btype", "situ"), "r")
set.seed(2)
some <- sample(levels(InstEval$s), 1500)
put("insteval-s", InstEval[InstEval$s %in% some, ], "s", c("service", "studage"), "y")
put("insteval-d", InstEval[sample(nrow(InstEval), 12000), ], "d", "service", "y")
rows <- cbpp[rep(seq_len(nrow(cbpp)), cbpp$size), ]
rows$y <- unlist(lapply(seq_len(nrow(cbpp)), function(i)
  rep(c(1, 0), c(cbpp$incidence[i], cbpp$size[i] - cbpp$incidence[i]))))
put("cbpp", rows, "herd", "period", "y")
put("grouseticks", transform(grouseticks, cH = (HEIGHT - 450) / 50), "BROOD", c("cH", "YEAR"), "TICKS")
put("orthodont", Orthodont, "Subject", c("age", "Sex"), "distance")
put("penicillin", Penicillin, "plate", "sample", "diameter")
put("cake", transform(cake, g = paste(recipe, replicate)), "g", c("temp", "recipe"), "angle")
set.seed(3)
some <- sample(levels(Chem97$school), 1200)
put("chem97", transform(Chem97[Chem97$school %in% some, ], g = gcsecnt), "school", c("g", "gender"), "score")
put("exam", Exam, "school", c("standLRT", "sex", "schgend"), "normexam")
immun <- transform(guImmun, i = as.integer(immun == "Y"))
put("guimmun-mom", immun, "mom", c("kid2p", "rural"), "i")
put("guimmun-comm", immun, "comm", c("kid2p", "mom25p", "rural"), "i")
put("guprenat", transform(guPrenat, i = as.integer(prenat == "Modern")), "cluster",
    c("childAge", "motherAge", "indig"), "i")
put("scotssec", ScotsSec, "primary", c("verbal", "sex"), "attain")
put("egsingle", egsingle, "childid", "year", "math")
put("bacteria", transform(MASS::bacteria, i = as.integer(y == "y")), "ID", c("trt", "week"), "i")
put("epil", transform(MASS::epil, lb = log(base / 4)), "subject", c("lb", "trt", "V4"), "y")
data(ohio, respiratory, dietox, package = "geepack")
put("ohio", ohio, "id", c("age", "smoke"), "resp")
put("respiratory", transform(respiratory, g = paste(center, id)), "g", c("treat", "visit", "baseline"), "outcome")
put("dietox", dietox, "Pig", c("Time", "Cu"), "Weight")
data(Males, Grunfeld, Cigar, package = "plm")
put("males", transform(Males, un = as.integer(union == "yes")), "nr", c("exper", "un", "school"), "wage")
put("gcsemv", Gcsemv, "school", c("gender", "course"), "written")
put("chickweight", ChickWeight, "Chick", c("Time", "Diet"), "weight")
set.seed(4)
math <- star[!is.na(star$math), ]
put("star", math[math$id %in% sample(unique(math$id), 2000), ], "id", c("gr", "cltype"), "math")
put("socatt", Socatt, "respond", c("year", "class"), "numpos")
put("bodyweight", BodyWeight, "Rat", c("Time", "Diet"), "weight")
put("grunfeld", Grunfeld, "firm", c("value", "capital"), "inv")
put("cigar", transform(Cigar, ls = log(sales), lp = log(price), ln = log(ndi)), "state", c("lp", "ln"), "ls")
put("hsb82", Hsb82, "school", "cses", "mAch")
put("contraception", transform(Contraception, u = as.integer(use == "Y")), "district", c("age", "urban"), "u")
put("arabidopsis", Arabidopsis, "gen", c("nutrient", "amd", "status"), "total.fruits")
if (!is.na(extra)) {
  get <- function(name) read.csv(file.path(extra, paste0(name, ".csv")))
  put("radon", get("HLMdiag/radon"), "county", c("basement", "uranium"), "log.radon")
  put("medpar", get("COUNT/medpar"), "provnum", c("white", "hmo", "type"), "los")
  put("azpro", get("COUNT/azpro"), "hospital", c("procedure", "sex", "admit", "age75"), "los")
  set.seed(5)
  visits <- get("COUNT/rwm5yr")
  visits <- visits[visits$id %in% sample(unique(visits$id), 2000), ]
  put("rwm", transform(visits, age = (age - 40) / 10), "id", c("age", "outwork", "female"), "docvis")
  ratings <- read.table(file.path(extra, "ml-100k/u.data"), col.names = c("user", "movie", "rating", "time"))
  put("movielens", ratings, "movie", NULL, "rating")
}
