//! Manual pages of this command, made of what it says with `--help`: for who packages it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::verbs::Config;

/// Writes the manual pages of section 1.
#[derive(clap::Args)]
pub(crate) struct ManualArgs {
    /// The folder to write them into
    directory: PathBuf,
}

pub(crate) fn run(args: &ManualArgs, command: &Command) -> Result<(), String> {
    write(args, command).map_err(|why| format!("{}: {why}", args.directory.display()))
}

fn write(args: &ManualArgs, command: &Command) -> io::Result<()> {
    let directory = &args.directory;
    fs::create_dir_all(directory)?;
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let pages: Vec<_> =
        command.get_subcommands().filter(|page| !page.is_hide_set()).cloned().collect();
    for page in &pages {
        // The name of a page has no space, and that of the command has one.
        let name = format!("ironverbs-{}", page.get_name());
        let page = page.clone().display_name(name.clone());
        let mut file = File::create(directory.join(format!("{name}.1")))?;
        Man::new(page).manual("ironverbs manual").render(&mut file)?;
        see_also(&mut file, ["ironverbs(1)"].map(str::to_owned))?;
    }
    let mut file = File::create(directory.join("ironverbs.1"))?;
    Man::new(command).manual("ironverbs manual").render(&mut file)?;
    settings().to_writer(&mut file)?;
    let other = ["ibv_gid_reachable(3)", "ibv_register_sm_events(3)"].map(str::to_owned);
    see_also(
        &mut file,
        pages.iter().map(|page| format!("ironverbs-{}(1)", page.get_name())).chain(other),
    )
}

fn see_also(file: &mut File, pages: impl IntoIterator<Item = String>) -> io::Result<()> {
    let pages: Vec<_> = pages.into_iter().collect();
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text([roman(pages.join(", "))]);
    roff.to_writer(file)
}

/// What the libraries and the command read.
fn settings() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["ENVIRONMENT"]).text([roman(
        "What a variable does not say is taken from the file, and then the default. `ironverbs info` shows the values in \
         force and where each comes from. A variable of this prefix that means nothing is an error.",
    )]);
    for entry in Config::default().entries() {
        roff.control("TP", []).text([bold(entry.variable), roman(format!(" ({})", entry.key))]);
        let default = match entry.value.as_str() {
            "" => "empty",
            value => value,
        };
        roff.text([roman(format!("{}. Default: {default}.", entry.expected))]);
    }
    roff.control("TP", []).text([bold("IRONVERBS_CONFIG")]).text([roman("the file to read.")]);
    roff.control("SH", ["FILES"]).text([roman(
        "The first that is there of $IRONVERBS_CONFIG, $XDG_CONFIG_HOME/ironverbs.toml (~/.config/ironverbs.toml) and \
         /etc/ironverbs.toml, in TOML: the names in parentheses above are its keys.",
    )]);
    roff
}
