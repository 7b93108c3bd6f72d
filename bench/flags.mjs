// Parses the flags of a bench: `--NAME VALUE` for each name of its options, and --header, which prints the column
// names.

// Sets the given values in `options` ({name: default}). Returns true if --header was given. An unknown flag ends the
// program with exit code 2 and a sentence that names the file with the description.
export function readFlags(bench, options, args = process.argv.slice(2)) {
  let with_header = false;
  for (let i = 0; i < args.length; i += 1) {
    const name = args[i].replace(/^--/, "");
    if (name === "header") with_header = true;
    else if (name in options && i + 1 < args.length) options[name] = args[i += 1];
    else {
      console.error(`${bench}: unknown flag ${args[i]}; see the head of bench/${bench}.mjs`);
      process.exit(2);
    }
  }
  return with_header;
}
