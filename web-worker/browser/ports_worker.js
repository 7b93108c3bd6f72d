// A SharedWorker that hands MessagePorts from tab to tab: the tab that computes (it is the home) gets one end
// of a channel, and each other tab the other end. It holds nothing else, and ends with the last tab.
// Messages in:  {type: "CONNECT"}: this tab wants a port to the home | {type: "HOME"}: this tab is the home now
// Messages out: {type: "PORT"} to a tab, {type: "CONNECT"} to the home, each with a port. After a new HOME every tab
//               gets a new port.
const tabs = new Set();
let home = null;

function join(tab) {
  const { port1, port2 } = new MessageChannel();
  home.postMessage({ type: "CONNECT" }, [port1]);
  tab.postMessage({ type: "PORT" }, [port2]);
}

self.onconnect = ({ ports: [tab] }) => {
  tab.onmessage = ({ data: { type } }) => {
    if (type === "HOME") {
      home = tab;
      tabs.delete(tab);
      for (const other of tabs) join(other);
    } else if (type === "CONNECT") {
      tabs.add(tab);
      if (home && home !== tab) join(tab);
    }
  };
};
