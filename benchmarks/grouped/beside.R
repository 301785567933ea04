# Rscript beside.R FOLDER: what `beside.py` compares with, and its data, in FOLDER.
#   crossed-SPLIT.csv  InstEval with a column test; crossed.csv: loss and seconds of lmer
#   NAME.csv           rows of ten sets; errors.csv: standard errors of lmer's fixed effects (REML)
#   NAME-cox.csv       survival data by site; cox.csv: coefficients of coxph, Efron's ties, a stratum a site
suppressWarnings(suppressPackageStartupMessages({library(lme4); library(mlmRev); library(survival)}))
out <- commandArgs(trailingOnly = TRUE)[1]
dir.create(out, showWarnings = FALSE, recursive = TRUE)
put <- function(rows, name) write.csv(rows, file.path(out, paste0(name, ".csv")), row.names = FALSE)

found <- NULL
for (split in 1:3) {
  set.seed(split)
  rows <- data.frame(InstEval[, c("s", "d", "service", "y")], test = as.integer(runif(nrow(InstEval)) < 0.5))
  rows$s <- paste0("s", rows$s); rows$d <- paste0("d", rows$d)
  put(rows, paste0("crossed-", split))
  begin <- sum(proc.time()[1:2])
  fit <- lmer(y ~ service + (1 | s) + (1 | d), rows[rows$test == 0, ])
  seconds <- sum(proc.time()[1:2]) - begin
  later <- rows[rows$test == 1, ]
  loss <- mean((later$y - predict(fit, later, allow.new.levels = TRUE))^2)
  found <- rbind(found, data.frame(split, loss, seconds))
}
put(found, "crossed")

sets <- list(
  sleepstudy = list(sleepstudy, "Reaction ~ Days + (1 + Days | Subject)"),
  machines = list(nlme::Machines, "score ~ Machine + (1 | Worker)"),
  orthodont = list(nlme::Orthodont, "distance ~ age + Sex + (1 + age | Subject)"),
  penicillin = list(Penicillin, "diameter ~ sample + (1 | plate)"),
  cake = list(transform(cake, pair = paste(recipe, replicate)), "angle ~ recipe + temp + (1 | pair)"),
  exam = list(Exam, "normexam ~ standLRT + sex + (1 + standLRT | school)"),
  hsb82 = list(Hsb82, "mAch ~ cses + sector + (1 + cses | school)"),
  scotssec = list(ScotsSec, "attain ~ verbal + sex + (1 + verbal | primary)"),
  chickweight = list(ChickWeight, "weight ~ Time + Diet + (1 + Time | Chick)"),
  dyestuff = list(Dyestuff, "Yield ~ 1 + (1 | Batch)"))
found <- NULL
for (name in names(sets)) {
  formula <- sets[[name]][[2]]
  rows <- as.data.frame(sets[[name]][[1]])[, all.vars(as.formula(formula))]
  for (c in names(rows)) if (is.factor(rows[[c]])) rows[[c]] <- as.character(rows[[c]])
  put(rows, name)
  fit <- suppressMessages(lmer(formula, rows, control = lmerControl(optCtrl = list(xtol_abs = 1e-10, ftol_abs = 1e-10))))
  found <- rbind(found, data.frame(set = name, formula, place = seq_along(fixef(fit)) - 1, estimate = fixef(fit),
                                   error = sqrt(diag(as.matrix(vcov(fit))))))
}
put(found, "errors")

sites <- list(
  lung = list(lung, "time", "status", c("age", "sex", "ph.ecog"), "inst"),
  cgd = list(cgd0 <- subset(cgd, enum == 1), "tstop", "status", c("age", "inherit", "steroids"), "center"),
  rats = list(subset(rats, sex == "f"), "time", "status", "rx", "litter"),
  colon = list(subset(colon, etype == 2), "time", "status", c("age", "sex", "nodes"), "differ"))
found <- NULL
for (name in names(sites)) {
  one <- sites[[name]]
  rows <- data.frame(time = one[[1]][[one[[2]]]], event = as.integer(one[[1]][[one[[3]]]] == max(one[[1]][[one[[3]]]])),
                     site = paste0("site", one[[1]][[one[[5]]]]))
  for (c in one[[4]]) rows[[c]] <- as.numeric(one[[1]][[c]])
  rows <- rows[complete.cases(rows) & rows$site != "siteNA", ]
  for (split in 1:3) { set.seed(split); rows[[paste0("test", split)]] <- as.integer(runif(nrow(rows)) < 0.5) }
  put(rows, paste0(name, "-cox"))
  right <- paste(one[[4]], collapse = " + ")
  fit <- coxph(as.formula(paste("Surv(time, event) ~", right, "+ strata(site)")), rows,
               control = coxph.control(eps = 1e-11, iter.max = 100))
  found <- rbind(found, data.frame(set = name, right, place = seq_along(coef(fit)) - 1, estimate = coef(fit)))
}
put(found, "cox")
