//! The command line: what can be asked for, with the help texts.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand, error::Error};
use handover::{
    config::{
        ConfigFile, Sources,
        setting::{Kind, SETTINGS},
    },
    dev::DevOptions,
};

/// Runs Kafka consumers as jobs: checkpointed in PostgreSQL, operated by REST.
///
/// A job reads topics, gives every record to a sink, and keeps how far it came in checkpoints. Start, stop and move jobs by
/// HTTP calls, and ask before each start where it would begin.
///
/// New here? `handover dev` shows two jobs at work and six calls to try; it needs PostgreSQL's programs and nothing else.
#[derive(Debug, Parser)]
#[command(name = "handover", version, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Task,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done, or ended as asked by SIGTERM or SIGINT (Ctrl-C)
  1    failed; the reason is on standard error
  2    wrong usage of the command line
  130  ended at once by a second SIGINT, without waiting for last checkpoints; 143 by a second SIGTERM

Logs go to standard error, results and the records of log sinks to standard output.";

const CONFIG_HELP: &str = "\
Every setting can stand in the file (section.key), in the environment (HANDOVER_SECTION_KEY) or on the command line \
(--section-key). The command line counts before the environment, the environment before the file. \
Kafka clusters and PostgreSQL targets of sinks are described in the file only: [connections.NAME]; see \
docs/configuration.md.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Run the server: the API, the web page and the jobs
    ///
    /// SIGTERM or Ctrl-C ends it in order: it takes no new calls, gives every job a last checkpoint and gives back their
    /// leases, for at most `server.shutdown_grace`. A second signal ends it at once; jobs then go on from their last
    /// completed checkpoint.
    ///
    /// SIGHUP has it read its configuration again: a changed `log.filter` and changed connections count from then on,
    /// for a job that runs from its next start. A configuration that is faulty, or differs in anything else, is refused
    /// as a whole; the log says why.
    #[command(after_help = CONFIG_HELP)]
    Serve(ConfigArgs),
    /// Show everything at work on this machine: database, broker, order events, two jobs
    ///
    /// Makes a private PostgreSQL cluster in a temporary folder, a topic with order events that keep coming, and two jobs
    /// that read them, then prints where to look and six calls to try. Ctrl-C ends it and leaves nothing behind.
    Dev(DevOptions),
    /// Bring the database schema up to date
    ///
    /// `handover serve` does the same at its start unless `store.migrate_at_start` is false. Safe to run beside servers and
    /// more than once.
    #[command(after_help = CONFIG_HELP)]
    Migrate(ConfigArgs),
    /// Print the OpenAPI document of the API
    Openapi,
    /// Check the configuration, and print what counts
    ///
    /// Prints every fault and exits with 1, or prints the effective configuration with the source of each value. Secrets
    /// are not shown. Connects to nothing.
    #[command(after_help = CONFIG_HELP)]
    CheckConfig(ConfigArgs),
}

/// Where the configuration comes from: a file, and one flag for each scalar setting.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigArgs {
    /// The file.
    file: Option<PathBuf>,
    /// Values of flags, by `section.key`.
    flags: BTreeMap<String, String>,
}

impl ConfigArgs {
    /// All sources, with this process's environment.
    pub(crate) fn sources(self) -> Sources {
        Sources {
            flags: self.flags,
            environment: environment(),
            file: self.file.map(ConfigFile::read),
        }
    }
}

/// The variables of this process that are UTF-8.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

impl Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("HANDOVER_CONFIG")
            .hide_env_values(true)
            .value_parser(clap::value_parser!(PathBuf))
            .help("The configuration file (TOML); examples/handover.toml shows all of it");
        let flags = SETTINGS.iter().map(|setting| {
            let default = match setting.default {
                Some(default) => format!(" [default: {default}]"),
                None => " [required]".to_owned(),
            };
            Arg::new(setting.name())
                .long(setting.flag())
                .value_name(match setting.kind {
                    Kind::Text => setting.key.to_uppercase(),
                    Kind::Bool => "true|false".to_owned(),
                    Kind::Integer => "N".to_owned(),
                    Kind::Duration => "DURATION".to_owned(),
                })
                .help(format!("{}{default}", setting.help))
        });
        command.arg(file).args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let flags = SETTINGS.iter().filter_map(|setting| {
            let value: &String = matches.get_one(&setting.name())?;
            Some((setting.name(), value.clone()))
        });
        Ok(Self {
            file: matches.get_one("config").cloned(),
            flags: flags.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The help of one command, as printed on a terminal of 100 columns.
    fn help(command: &str) -> String {
        let mut cli = Cli::command().term_width(100);
        cli.build();
        let command = match command {
            "" => &mut cli,
            name => cli.find_subcommand_mut(name).unwrap(),
        };
        command.render_long_help().to_string()
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_texts() {
        insta::assert_snapshot!("help", help(""));
        for command in ["serve", "dev", "migrate", "openapi", "check-config"] {
            insta::assert_snapshot!(format!("help-{command}"), help(command));
        }
    }

    #[test]
    fn every_setting_has_a_flag() {
        for setting in SETTINGS {
            let flag = format!("--{}", setting.flag());
            let cli = Cli::try_parse_from(["handover", "serve", &flag, "value"]).unwrap();
            let Task::Serve(args) = cli.command else {
                panic!("not serve");
            };
            assert_eq!(args.flags[&setting.name()], "value");
        }
    }
}
