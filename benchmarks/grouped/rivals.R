# Rscript rivals.R DATA.csv TEST FIXED FAMILY RANDOM...: for each RANDOM a line "loss,seconds,note" of the fit of
# FIXED + RANDOM to rows whose column TEST is 0, scored on rows where it is 1.  lmer of lme4 for family gaussian (REML),
# glmmTMB for others (Laplace).  Seconds are of processor time.
given <- commandArgs(trailingOnly = TRUE)
test <- given[2]; family <- given[4]
suppressWarnings(suppressPackageStartupMessages(if (family == "gaussian") library(lme4) else library(glmmTMB)))
data <- read.csv(given[1])
data$client <- factor(data$client)
used <- all.vars(as.formula(given[3]))
data <- data[complete.cases(data[, c("client", used)]), ]
train <- data[data[[test]] == 0, ]
later <- data[data[[test]] == 1, ]
loss <- function(y, m) switch(family,
  gaussian = mean((y - m)^2),
  binomial = -mean(ifelse(y == 1, log(m), log1p(-m))),
  poisson = mean(2 * (ifelse(y > 0, y * log(pmax(y, 1) / m), 0) - (y - m))))
for (random in given[-(1:4)]) {
  formula <- as.formula(paste(given[3], "+", random))
  begin <- sum(proc.time()[1:2])
  line <- tryCatch({
    setTimeLimit(cpu = 200, transient = TRUE)
    fit <- suppressMessages(suppressWarnings(
      if (family == "gaussian") lmer(formula, train, control = lmerControl(
        check.nobs.vs.nRE = "ignore", check.nobs.vs.nlev = "ignore"))
      else glmmTMB(formula, train, family = family)))
    seconds <- sum(proc.time()[1:2]) - begin
    expected <- suppressWarnings(predict(fit, later, type = "response", allow.new.levels = TRUE))
    note <- if (family == "gaussian") isSingular(fit) else fit$fit$convergence
    paste(format(loss(later$y, expected), digits = 10), round(seconds, 3), note, sep = ",")
  }, error = function(e) paste("nan", 0, gsub("[,\n]", " ", conditionMessage(e)), sep = ","))
  cat(line, "\n", sep = "")
}
