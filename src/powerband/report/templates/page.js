for (const box of document.querySelectorAll(".code")) {
  const button = box.querySelector("button");
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(box.querySelector("pre").textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(box.querySelector("pre"));
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
