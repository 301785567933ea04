# Rscript lme4.R DATA.csv FIXED FAMILY RANDOM...: for each RANDOM a line "loss,seconds,singular" of lme4's fit of
# FIXED + RANDOM to rows with test == 0, scored on rows with test == 1.
suppressPackageStartupMessages(library(lme4))
given <- commandArgs(trailingOnly = TRUE)
data <- read.csv(given[1])
data$client <- factor(data$client)
used <- all.vars(as.formula(given[2]))
data <- data[complete.cases(data[, c("client", used)]), ]
train <- data[data$test == 0, ]
test <- data[data$test == 1, ]
loss <- function(y, m) switch(given[3],
  gaussian = mean((y - m)^2),
  binomial = -mean(ifelse(y == 1, log(m), log1p(-m))),
  poisson = mean(2 * (ifelse(y > 0, y * log(pmax(y, 1) / m), 0) - (y - m))))
for (random in given[-(1:3)]) {
  formula <- as.formula(paste(given[2], "+", random))
  begin <- proc.time()[["elapsed"]]
  line <- tryCatch({
    setTimeLimit(elapsed = 200, transient = TRUE)
    fit <- suppressMessages(suppressWarnings(
      if (given[3] == "gaussian") lmer(formula, train, control = lmerControl(
        check.nobs.vs.nRE = "ignore", check.nobs.vs.nlev = "ignore"))
      else glmer(formula, train, family = given[3], control = glmerControl(check.nobs.vs.nRE = "ignore"))))
    seconds <- proc.time()[["elapsed"]] - begin
    expected <- predict(fit, test, type = "response", allow.new.levels = TRUE)
    paste(format(loss(test$y, expected), digits = 10), round(seconds, 1), isSingular(fit), sep = ",")
  }, error = function(e) paste("nan", 0, gsub("[,\n]", " ", conditionMessage(e)), sep = ","))
  cat(line, "\n", sep = "")
}
