// The flags of a bench: `--NAME VALUE` for each name of its options, and --header, which prints the names of the
// columns.

// Sets what is given in `options` ({name: default}) and tells whether --header is. One that nobody knows ends the
// program with 2 and says where the flags are described.
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
