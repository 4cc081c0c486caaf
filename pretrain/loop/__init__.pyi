from .step_loop import Loop as Loop
