# Sites that keep their rows, in pda and DataSHIELD: predictions of held-out rows, what each site sends, how often.
#   python benchmarks/rivals/sites.py --export FOLDER --data DATA && Rscript benchmarks/rivals/sites.R FOLDER
# PDA=folder names the R files of pda, if it is not installed as a package.
suppressMessages({
  library(data.table); library(jsonlite); library(minqa); library(DSI); library(DSLite); library(dsBaseClient)
})
if (Sys.getenv("PDA") == "") library(pda) else for (file in c("pda", "DLM", "DPQL", "dlmm"))
  sys.source(file.path(Sys.getenv("PDA"), paste0(file, ".R")), globalenv())
folder <- commandArgs(TRUE)[1]
sets <- fromJSON(file.path(folder, "sets.json"))
out <- file.path(folder, "rivals.csv")
if (!file.exists(out)) writeLines("set,method,exchanges,bytes,cpu_seconds,error", out)

said <- function(set, method, exchanges, bytes, begin, error = "")
  write(paste(set, method, exchanges, round(bytes), round(sum(proc.time()[1:2]) - begin, 1), error, sep = ","), out,
        append = TRUE)
keep <- function(set, method, prediction) write.csv(
  data.frame(prediction = prediction), file.path(folder, set, paste0(gsub(" ", "-", method), ".csv")), row.names = FALSE)

# Each site calls pda() in turn, in a shared folder; the lead is last, so that it sees all the others.
in_pda <- function(train, control) {
  dir <- tempfile("pda"); dir.create(dir)
  sites <- control$sites; lead <- control$lead_site
  call <- function(site, ...) suppressWarnings(suppressMessages(
    pda(site_id = site, dir = dir, upload_without_confirm = TRUE, silent_message = TRUE, ...)))
  call(lead, control = control, ipdata = train[[lead]])
  exchanges <- 0; answer <- NULL
  repeat {
    step <- fromJSON(file.path(dir, "control.json"))$step
    if (is.null(step) || file.exists(file.path(dir, paste0(lead, "_", step, ".json")))) break
    if (grepl("^estimate", step)) answer <- step
    if (step == "estimate") { call(lead, ipdata = train[[lead]]); next }
    exchanges <- exchanges + !grepl("^estimate", step)
    for (site in c(setdiff(sites, lead), lead)) call(site, ipdata = train[[site]])
  }
  # What one site sent: the second, which is not the lead.
  own <- setdiff(sites, lead)[1]
  sent <- sum(file.size(list.files(dir, paste0("^", own, "_(initialize|derive).*json"), full.names = TRUE)))
  found <- fromJSON(file.path(dir, paste0(lead, "_", answer, ".json")))
  list(found = found, exchanges = exchanges, bytes = sent)
}

# ``filters``: a site's own limits of disclosure, where not DataSHIELD's defaults.
in_datashield <- function(train, formula, family, filters) {
  server <- newDSLiteServer(tables = train, config = defaultDSConfiguration(include = "dsBase"))
  for (name in names(filters)) server$option(name, filters[[name]])
  assign("dslite.server", server, envir = globalenv())
  builder <- newDSLoginBuilder()
  for (name in names(train)) builder$append(server = name, url = "dslite.server", table = name, driver = "DSLiteDriver")
  connections <- suppressMessages(datashield.login(builder$build(), assign = TRUE, symbol = "D"))
  count <<- 0; size <<- 0
  suppressMessages(trace("datashield.aggregate", where = asNamespace("DSI"), print = FALSE, exit = quote({
    value <- returnValue()
    assign("count", get("count", globalenv()) + 1, globalenv())
    if (is.list(value) && length(value)) assign("size", get("size", globalenv()) + length(serialize(value[[1]], NULL)), globalenv())
  })))
  fit <- ds.glm(formula = formula, data = "D", family = family, datasources = connections)
  if (is.null(fit$coefficients)) stop(paste(unlist(datashield.errors()), collapse = "; "))
  list(coefficients = fit$coefficients[, "Estimate"], exchanges = count, bytes = size)
}

for (set in setdiff(names(sets), fread(out)$set)) {
  about <- sets[[set]]
  read <- function(part) {
    rows <- as.data.frame(fread(file.path(folder, set, paste0(part, ".csv"))))
    rows$site <- as.character(rows$site)
    cbind(rows, one = 1)
  }
  rows <- read("train"); test <- read("test")
  sites <- sort(unique(rows$site)); train <- split(rows, rows$site)[sites]
  # pda 1.3.2 renames the intercept before dPQL looks for it; a column of ones works.
  variables <- c("0", "one", about$variables)
  formula <- paste("y ~", paste(variables, collapse = " + "))
  z <- model.matrix(as.formula(formula), test)
  respond <- function(eta) if (about$family == "binomial") plogis(eta) else eta
  for (which in c("intercept", "all")) {
    method <- paste("pda", if (about$family == "gaussian") "DLMM" else "dPQL", which)
    begin <- sum(proc.time()[1:2])
    control <- list(project_name = set, sites = sites, lead_site = sites[1], outcome = "y", variables = variables,
      family = about$family, optim_maxit = 100, heterogeneity = TRUE, heterogeneity_effect = "random",
      variables_heterogeneity = if (which == "all") variables[-1] else "one")
    control <- c(control, if (about$family == "gaussian") list(model = "DLM", step = "initialize")
                 else list(model = "DPQL", step = "derive_1", round = 1, maxround = 5))
    tryCatch({
      at <- match(test$site, sites)
      varying <- if (which == "all") seq_len(ncol(z)) else 1
      if (which == "intercept" && (about$family == "gaussian" || length(sites) < 20)) {
        done <- in_pda(train, control)
        eta <- c(z %*% unlist(done$found$bhat)); own <- unlist(done$found$uhat)[at]
      } else {
        # pda() stops where more than one coefficient differs; its functions behind that do not.  With many sites it
        # is slow, since every site fits the model of all in each round.
        rows <- rows[order(rows$site), ]; x <- model.matrix(as.formula(formula), rows)
        invisible(capture.output(fit <- if (about$family == "gaussian") lmm.fit(rows$y, x, x[, varying, drop = FALSE], rows$site, pooled = TRUE) else
          glmmDPQL.fit(rows$y, x, x[, varying, drop = FALSE], rows$site, fixef.init = rep(0, ncol(x)), pooled = TRUE, family = about$family,
                       niter = 5, verbose = FALSE)))
        eta <- c(z %*% fit$b); own <- rowSums(z[, varying, drop = FALSE] * fit$uiM[at, , drop = FALSE])
        done <- list(exchanges = if (about$family == "gaussian") 1 else fit$iter, bytes = NA)
      }
      keep(set, method, respond(eta + ifelse(is.na(at), 0, own)))
      said(set, method, done$exchanges, done$bytes, begin)
    }, error = function(e) said(set, method, "", 0, begin, gsub("[,\n]", " ", conditionMessage(e))))
  }
  for (which in c("one model", "intercepts")) for (loose in c(FALSE, TRUE)) {
    method <- paste("DataSHIELD ds.glm", which, if (loose) "loosened" else "as delivered")
    begin <- sum(proc.time()[1:2])
    if (length(sites) > 20 && (which == "intercepts" || loose)) next
    filters <- list(default.nfilter.glm = if (loose) 0.5 else 0.33, default.nfilter.tab = if (loose) 1 else 3)
    add <- if (which == "intercepts") paste0("site_", sites[-1])
    with_sites <- function(rows) { for (s in sites[-1]) rows[[paste0("site_", s)]] <- as.numeric(rows$site == s); rows }
    tryCatch({
      wide <- paste(c(paste("y ~", paste(about$variables, collapse = " + ")), add), collapse = " + ")
      done <- in_datashield(lapply(train, with_sites), wide, about$family, filters)
      x <- model.matrix(as.formula(wide), with_sites(test))
      keep(set, method, respond(c(x %*% done$coefficients)))
      said(set, method, done$exchanges, done$bytes, begin)
    }, error = function(e) said(set, method, "", 0, begin, paste("refused:", gsub("[,\n]", " ", conditionMessage(e)))))
  }
}
